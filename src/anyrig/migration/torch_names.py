"""Which names of PyTorch are what."""

from __future__ import annotations

LOSSES = frozenset(
    {
        *("L1Loss", "NLLLoss", "NLLLoss2d", "PoissonNLLLoss", "GaussianNLLLoss", "KLDivLoss"),
        *("MSELoss", "BCELoss", "BCEWithLogitsLoss", "HingeEmbeddingLoss", "SmoothL1Loss"),
        *("MultiLabelMarginLoss", "HuberLoss", "SoftMarginLoss", "CrossEntropyLoss"),
        *("MultiLabelSoftMarginLoss", "CosineEmbeddingLoss", "MarginRankingLoss"),
        *("MultiMarginLoss", "TripletMarginLoss"),
    }
)
"""Classes of torch.nn that compute a loss."""

LOSS_FUNCTIONS = frozenset(
    {
        *("binary_cross_entropy", "binary_cross_entropy_with_logits", "cosine_embedding_loss"),
        *("cross_entropy", "gaussian_nll_loss", "hinge_embedding_loss", "huber_loss", "kl_div"),
        *(
            "l1_loss",
            "margin_ranking_loss",
            "mse_loss",
            "multi_margin_loss",
            "multilabel_margin_loss",
        ),
        *("multilabel_soft_margin_loss", "nll_loss", "poisson_nll_loss", "smooth_l1_loss"),
        *("soft_margin_loss", "triplet_margin_loss"),
    }
)
"""Functions of torch.nn.functional that compute a loss."""

FACTORIES = frozenset(
    {
        *("arange", "as_tensor", "empty", "empty_like", "eye", "from_numpy", "full", "full_like"),
        *("linspace", "logspace", "normal", "ones", "ones_like", "rand", "rand_like", "randint"),
        *("randn", "randn_like", "randperm", "range", "tensor", "zeros", "zeros_like"),
        *("bernoulli", "multinomial", "tril_indices", "triu_indices"),
    }
)
"""Functions of torch that make a tensor without a graph."""

TENSOR_TYPES = {
    "FloatTensor": "float32",
    "DoubleTensor": "float64",
    "HalfTensor": "float16",
    "BFloat16Tensor": "bfloat16",
    "ByteTensor": "uint8",
    "CharTensor": "int8",
    "ShortTensor": "int16",
    "IntTensor": "int32",
    "LongTensor": "int64",
    "BoolTensor": "bool",
}
"""The old tensor types, and the dtype of each."""

WHOLE_TYPES = frozenset({"ByteTensor", "CharTensor", "ShortTensor", "IntTensor", "LongTensor"})
"""Tensor types of whole numbers."""

REDUCTIONS = frozenset(
    {"sum", "mean", "norm", "prod", "std", "var", "max", "min", "median", "dist"}
)
"""Functions that reduce a tensor to one number if they are called without a dimension."""

COMPARISONS = frozenset(
    {"eq", "ne", "lt", "gt", "le", "ge", "isnan", "isinf", "isfinite", "logical_not"}
)
"""Methods whose result is a mask."""

SAME_ELEMENTS = frozenset(
    {
        *("contiguous", "diagonal", "expand", "expand_as", "flatten", "flip", "gather"),
        *("index_select", "masked_select", "narrow", "permute", "repeat", "reshape", "roll"),
        *("select", "squeeze", "t", "transpose", "unsqueeze", "view", "view_as"),
    }
)
"""Methods whose result has elements of the tensor, with its dtype."""

NOT_TENSORS = frozenset(
    {
        *("item", "tolist", "numpy", "size", "dim", "nelement", "numel", "type", "get_device"),
        *("stride", "is_contiguous", "data_ptr", "storage", "backward", "register_hook", "format"),
        *("ndimension", "element_size", "storage_offset", "state_dict", "parameters", "is_cuda"),
        *("named_parameters", "children", "modules", "named_modules", "__len__", "keys", "items"),
        *("values", "split", "chunk", "unbind", "append", "step", "zero_grad", "requires_grad_for"),
    }
)
"""Methods of tensors and modules that return several tensors, or none."""

OF_MODULES = ("eval", "train", "parameters", "state_dict", "load_state_dict", "zero_grad")
"""Methods that, called on a name, show that it is a module."""

SAME_MODULE = frozenset(
    {
        *("cuda", "cpu", "to", "half", "float", "double", "train", "eval", "apply", "share_memory"),
        *("requires_grad_", "to_empty", "bfloat16", "type", "xpu", "compile"),
    }
)
"""Methods of a module that return the module."""

NOT_TENSOR_FUNCTIONS = frozenset(
    {
        *("load", "save", "device", "Generator", "manual_seed", "is_tensor", "set_default_dtype"),
        *("set_default_tensor_type", "compile", "no_grad", "enable_grad", "set_grad_enabled"),
        *("get_rng_state", "initial_seed", "numel", "set_num_threads", "finfo", "iinfo", "dtype"),
        *(
            "inference_mode",
            "is_grad_enabled",
            "split",
            "chunk",
            "unbind",
            "Size",
            "get_default_dtype",
        ),
        *("typename", "is_storage", "set_printoptions", "set_rng_state", "autocast", "Stream"),
        *("Event", "equal", "allclose", "is_floating_point", "broadcast_tensors", "meshgrid"),
        *("set_default_device", "use_deterministic_algorithms", "get_num_threads", "memory_format"),
    }
)
"""Functions of torch that return several tensors, or none."""
