"""Private names of PyTorch that `anyrig.processes` uses."""

from __future__ import annotations

from ..name import Needs, PrivateName

_AGENT = "anyrig run: the start, watch and end of ranks"
_LOGS = "anyrig run: the files of ranks that have ended"
_MEETING = "anyrig run: the meeting of several nodes"

PROCESSES = (
    PrivateName("torch._C._dispatch_has_kernel_for_dispatch_key", "messages between ranks"),
    PrivateName(
        "torch.autograd.graph._engine_run_backward", "the line of a rank that failed or waited"
    ),
    PrivateName(
        "torch.distributed.distributed_c10d._world",
        "the end of a process: groups over gloo that still run",
        needs=Needs.DISTRIBUTED,
    ),
    PrivateName(
        "torch.distributed.elastic.agent.server.api.SimpleElasticAgent._exit_barrier",
        _AGENT,
        needs=Needs.DISTRIBUTED,
    ),
    PrivateName(
        "torch.distributed.elastic.agent.server.api.SimpleElasticAgent._monitor_workers",
        _AGENT,
        needs=Needs.DISTRIBUTED,
    ),
    PrivateName(
        "torch.distributed.elastic.agent.server.api.SimpleElasticAgent._remaining_restarts",
        _AGENT,
        needs=Needs.DISTRIBUTED,
    ),
    PrivateName(
        "torch.distributed.elastic.agent.server.api.SimpleElasticAgent._rendezvous",
        _AGENT,
        needs=Needs.DISTRIBUTED,
    ),
    PrivateName(
        "torch.distributed.elastic.agent.server.api.SimpleElasticAgent._restart_workers",
        _AGENT,
        needs=Needs.DISTRIBUTED,
    ),
    PrivateName(
        "torch.distributed.elastic.agent.server.api.SimpleElasticAgent._shutdown",
        _AGENT,
        needs=Needs.DISTRIBUTED,
    ),
    PrivateName(
        "torch.distributed.elastic.agent.server.api.SimpleElasticAgent._start_workers",
        _AGENT,
        needs=Needs.DISTRIBUTED,
    ),
    PrivateName(
        "torch.distributed.elastic.agent.server.api.SimpleElasticAgent._worker_group",
        _AGENT,
        needs=Needs.DISTRIBUTED,
    ),
    PrivateName(
        "torch.distributed.elastic.agent.server.local_elastic_agent.LocalElasticAgent._pcontext",
        _AGENT,
        needs=Needs.DISTRIBUTED,
    ),
    PrivateName(
        "torch.distributed.elastic.agent.server.local_elastic_agent.LocalElasticAgent."
        "_setup_local_watchdog",
        _AGENT,
        needs=Needs.DISTRIBUTED,
    ),
    PrivateName(
        "torch.distributed.elastic.multiprocessing.api.PContext._tail_logs",
        _LOGS,
        needs=Needs.DISTRIBUTED,
    ),
    PrivateName(
        "torch.distributed.elastic.multiprocessing.subprocess_handler.subprocess_handler.SubprocessHandler."
        "_stderr",
        _LOGS,
        needs=Needs.DISTRIBUTED,
    ),
    PrivateName(
        "torch.distributed.elastic.multiprocessing.subprocess_handler.subprocess_handler.SubprocessHandler."
        "_stdout",
        _LOGS,
        needs=Needs.DISTRIBUTED,
    ),
    PrivateName(
        "torch.distributed.elastic.rendezvous.dynamic_rendezvous.DynamicRendezvousHandler."
        "_bootstrap_store_info",
        _MEETING,
        needs=Needs.DISTRIBUTED,
    ),
    PrivateName(
        "torch.distributed.elastic.rendezvous.dynamic_rendezvous.DynamicRendezvousHandler."
        "_shared_tcp_store_server",
        _MEETING,
        needs=Needs.DISTRIBUTED,
    ),
)
