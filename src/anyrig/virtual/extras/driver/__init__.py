"""Virtual GPUs for programs that do not use PyTorch: NVML's library and `nvidia-smi`.

::

    pynvml, gpustat, a program in Go or Rust        GPUtil, a shell script
              │ libnvidia-ml.so.1                        │ nvidia-smi
              ▼                                          ▼
          nvml/*.cpp  ◄───────── pynvml ─────────  smi/*.py
              │ the rig: ANYRIG_DRIVER, from facts.py
              │ the bytes in use: the file `gpus` in the rehearsal's folder

Both show all GPUs of the process's node; like NVIDIA's own, they ignore ``CUDA_VISIBLE_DEVICES``.
A process of the rehearsal finds both through ``LD_LIBRARY_PATH`` and ``PATH``, whatever language it
is written in. Linux only.
"""
