// The CUDA driver's start, without a driver: libcuda.so.1 that knows whether cuInit has run.
//     g++ -shared -fPIC -o libcuda.so.1 -Wl,-soname,libcuda.so.1 cuda_stand_in.cpp

static bool started = false;

extern "C" {

int cuInit(unsigned) {
  started = true;
  return 0;
}

int cuDeviceGetCount(int* count) {
  if (!started) return 3;  // CUDA_ERROR_NOT_INITIALIZED
  *count = 2;
  return 0;
}
}
