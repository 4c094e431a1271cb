// Libraries of a GPU's vendor that are loaded when they are first needed: cuBLASLt and NCCL. Python packages, the CUDA
// toolkit and the system have them; the program starts, and works on a CPU, without.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace hone {

struct VendorLibraryName {
  const char* title;    ///< in messages: "cuBLAS"
  const char* file;     ///< with the major version that the program was compiled with: "libcublasLt.so.13"
  const char* package;  ///< its folder in a Python environment: "nvidia/cu13/lib"
  const char* fix;      ///< how to install it, for the error
};

/// Where the file of a library is looked for, in order: beside the program; among the Python packages of the
/// environment that it is installed in, of the one that is active (VIRTUAL_ENV, CONDA_PREFIX), of the user and of the
/// system; in the folders of the CUDA toolkit; and by its plain name where the system's loader looks. Only the last is
/// a path that need not exist.
std::vector<std::filesystem::path> vendor_library_paths(const VendorLibraryName& name,
                                                        const std::filesystem::path& program);

/// "2.28.3, /path/of/libnccl.so.2" of a version in NVIDIA's form, 22803.
std::string vendor_version_text(size_t version, const std::string& path);
/// "none: REASON; FIX" of one that cannot be loaded.
std::string missing_text(const std::string& reason, const std::string& fix);

/// A library that is loaded, and stays so.
class VendorLibrary {
 public:
  /// Loads the first that can be loaded. Throws UserError with the paths and `fix` if none can.
  explicit VendorLibrary(const VendorLibraryName& name);

  /// The file that was loaded.
  const std::string& path() const { return path_; }

  /// Sets `function` to the exported symbol. Throws UserError if there is none: the library is too old.
  template <class Function>
  void find(Function& function, const char* symbol) const {
    function = reinterpret_cast<Function>(address(symbol));
  }

 private:
  void* address(const char* symbol) const;

  VendorLibraryName name_;
  void* handle_ = nullptr;
  std::string path_;
};

}  // namespace hone
