"""What PyTorch's profiler measures on real devices, as the record from which facts are read.

::

    anyrig run --report ── hands MeasureOptions to each rank                 options.py
       ├─ rank ── ProfiledWindow: the profiler, for a few steps              profiled_window.py
       │            marks.py marks modules and steps in the trace
       │          read_trace: the file that Kineto writes                    trace_file.py
       │          record_of_trace                                            adapter.py
       │            host_timeline.py   operators, launches and waits of each thread
       │            device_works.py    kernels, copies and collectives of each stream
       │            memory_events.py   what the allocator took over time
       └─ ProcessRecord ─▶ Facts ─▶ the page, the trace, the summary         measured_facts.py
"""
