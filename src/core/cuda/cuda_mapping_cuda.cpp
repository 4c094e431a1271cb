#include "core/cuda/cuda_mapping.h"

#include "core/cuda/cuda_device.h"
#include "core/cuda/cuda_driver_functions.h"

namespace hone::cuda {

namespace {

struct Driver {
  decltype(&cuMemGetAllocationGranularity) granularity = nullptr;
  decltype(&cuMemCreate) create = nullptr;
  decltype(&cuMemRelease) release = nullptr;
  decltype(&cuMemExportToShareableHandle) share = nullptr;
  decltype(&cuMemImportFromShareableHandle) import = nullptr;
  decltype(&cuMemAddressReserve) reserve = nullptr;
  decltype(&cuMemAddressFree) free = nullptr;
  decltype(&cuMemMap) map = nullptr;
  decltype(&cuMemUnmap) unmap = nullptr;
  decltype(&cuMemSetAccess) set_access = nullptr;
  decltype(&cuDeviceGetAttribute) attribute = nullptr;
};

const Driver& driver() {
  static const Driver found = [] {
    Driver functions;
    find_driver_function(functions.granularity, "cuMemGetAllocationGranularity");
    find_driver_function(functions.create, "cuMemCreate");
    find_driver_function(functions.release, "cuMemRelease");
    find_driver_function(functions.share, "cuMemExportToShareableHandle");
    find_driver_function(functions.import, "cuMemImportFromShareableHandle");
    find_driver_function(functions.reserve, "cuMemAddressReserve");
    find_driver_function(functions.free, "cuMemAddressFree");
    find_driver_function(functions.map, "cuMemMap");
    find_driver_function(functions.unmap, "cuMemUnmap");
    find_driver_function(functions.set_access, "cuMemSetAccess");
    find_driver_function(functions.attribute, "cuDeviceGetAttribute");
    return functions;
  }();
  return found;
}

CUmemAllocationProp properties_of(int device) {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, device};
  properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  return properties;
}

/// The GPU's context, which the driver's functions use, becomes the thread's.
void use(int device) {
  check(cudaSetDevice(device), "selecting a GPU");
  check(cudaFree(nullptr), "selecting a GPU");
}

CUdeviceptr address(const std::byte* memory) { return reinterpret_cast<CUdeviceptr>(memory); }

}  // namespace

size_t mapping_granularity(int device) {
  use(device);
  for (const CUdevice_attribute needed : {CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
                                          CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED}) {
    int supported = 0;
    if (driver().attribute(&supported, needed, device) != CUDA_SUCCESS || supported == 0) return 0;
  }
  const CUmemAllocationProp properties = properties_of(device);
  size_t bytes = 0;
  const CUresult result = driver().granularity(&bytes, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
  return result == CUDA_SUCCESS ? bytes : 0;
}

unsigned long long create_memory(int device, size_t bytes) {
  use(device);
  const CUmemAllocationProp properties = properties_of(device);
  CUmemGenericAllocationHandle memory = 0;
  const CUresult result = driver().create(&memory, bytes, &properties, 0);
  if (result == CUDA_ERROR_OUT_OF_MEMORY) throw_out_of_memory(device, bytes);
  check_driver(result, "allocating memory");
  return memory;
}

void release_memory(unsigned long long memory) noexcept { driver().release(memory); }

int share_memory(unsigned long long memory) {
  int descriptor = -1;
  check_driver(driver().share(&descriptor, memory, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0), "sharing memory");
  return descriptor;
}

unsigned long long import_memory(int device, int descriptor, std::string& why_not) {
  use(device);
  CUmemGenericAllocationHandle memory = 0;
  const CUresult result = driver().import(&memory, reinterpret_cast<void*>(static_cast<intptr_t>(descriptor)),
                                          CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  if (result == CUDA_SUCCESS) return memory;
  why_not = text_of(result);
  return 0;
}

std::byte* reserve_addresses(int device, size_t bytes) {
  use(device);
  CUdeviceptr addresses = 0;
  check_driver(driver().reserve(&addresses, bytes, 0, 0, 0), "reserving addresses");
  return reinterpret_cast<std::byte*>(addresses);
}

void free_addresses(int device, std::byte* addresses, size_t bytes) noexcept {
  cudaSetDevice(device);
  driver().free(address(addresses), bytes);
}

std::string map_memory(int device, std::byte* at, unsigned long long memory, size_t bytes) {
  use(device);
  constexpr size_t kOffset = 0;  // the driver supports no other
  const CUresult result = driver().map(address(at), bytes, kOffset, memory, 0);
  return result == CUDA_SUCCESS ? "" : text_of(result);
}

std::string allow_access(int device, std::byte* at, size_t bytes) {
  use(device);
  CUmemAccessDesc access{};
  access.location = {CU_MEM_LOCATION_TYPE_DEVICE, device};
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  const CUresult result = driver().set_access(address(at), bytes, &access, 1);
  return result == CUDA_SUCCESS ? "" : text_of(result);
}

void unmap_memory(int device, std::byte* at, size_t bytes) noexcept {
  cudaSetDevice(device);
  driver().unmap(address(at), bytes);
}

}  // namespace hone::cuda
