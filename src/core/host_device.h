// Marks functions that CUDA kernels call as well as the host.
#pragma once

#ifdef __CUDACC__
#define HONE_HOST_DEVICE __host__ __device__
#else
#define HONE_HOST_DEVICE
#endif
