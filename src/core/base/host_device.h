// HONE_HOST_DEVICE: marks functions that both the host and CUDA kernels call.
#pragma once

#ifdef __CUDACC__
#define HONE_HOST_DEVICE __host__ __device__
#else
#define HONE_HOST_DEVICE
#endif
