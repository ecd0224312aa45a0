"""What programs ask beside PyTorch: NVML's library, and the command `nvidia-smi`.

::

    pynvml, gpustat, a program in Go or Rust        GPUtil, a shell script
              │ libnvidia-ml.so.1                        │ nvidia-smi
              ▼                                          ▼
          nvml/*.cpp  ◄───────── pynvml ─────────  smi/*.py
              │ the rig: ANYRIG_DRIVER, from facts.py
              │ the bytes in use: the cards' file of the rehearsal

Both show the cards of this process' node, all of them, whatever ``CUDA_VISIBLE_DEVICES`` holds. A
process of the rehearsal finds them through ``LD_LIBRARY_PATH`` and ``PATH``, in whatever language
it is written. Linux only, as is all that asks NVML in this way.
"""
