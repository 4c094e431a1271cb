#include "core/cuda/vendor_library.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>

#include "core/base/error.h"
#include "core/base/program.h"

namespace hone {

namespace fs = std::filesystem;

namespace {

/// The folders of Python packages below the prefix of an environment: lib/python3.12/site-packages, and Debian's.
std::vector<fs::path> package_folders(const fs::path& prefix) {
  std::vector<fs::path> folders;
  for (const char* lib : {"lib", "lib64"}) {
    std::error_code error;
    for (const auto& entry : fs::directory_iterator(prefix / lib, error)) {
      if (!entry.path().filename().string().starts_with("python3")) continue;
      for (const char* packages : {"site-packages", "dist-packages"}) folders.push_back(entry.path() / packages);
    }
  }
  std::sort(folders.rbegin(), folders.rend());
  return folders;
}

/// The environments whose packages count: the one that the program is installed in (PREFIX/bin or PREFIX/lib/hone), the
/// one that is active, the user's, and the system's.
std::vector<fs::path> prefixes(const fs::path& folder) {
  std::vector<fs::path> prefixes = {folder.parent_path(), folder.parent_path().parent_path()};
  for (const char* active : {"VIRTUAL_ENV", "CONDA_PREFIX"}) {
    if (const char* prefix = std::getenv(active); prefix != nullptr && *prefix == '/') prefixes.emplace_back(prefix);
  }
  if (const char* home = std::getenv("HOME"); home != nullptr && *home == '/')
    prefixes.push_back(fs::path(home) / ".local");
  for (const char* system : {"/usr/local", "/usr"}) prefixes.emplace_back(system);
  return prefixes;
}

}  // namespace

std::vector<fs::path> vendor_library_paths(const VendorLibraryName& name, const fs::path& program) {
  const fs::path folder = program.parent_path();
  std::vector<fs::path> folders = {folder, folder / "lib"};
  // Inside of an environment: site-packages/hone/bin and site-packages/hone lie beside site-packages/nvidia.
  for (const fs::path& packages : {folder.parent_path(), folder.parent_path().parent_path()})
    folders.push_back(packages / name.package);
  for (const fs::path& prefix : prefixes(folder)) {
    for (const fs::path& packages : package_folders(prefix)) folders.push_back(packages / name.package);
  }
  for (const char* toolkit : {"/usr/local/cuda/lib64", "/usr/local/cuda/targets/x86_64-linux/lib"})
    folders.emplace_back(toolkit);
  std::vector<fs::path> paths;
  std::error_code error;
  for (const fs::path& place : folders) {
    const fs::path path = place / name.file;
    if (fs::exists(path, error) && std::find(paths.begin(), paths.end(), path) == paths.end()) paths.push_back(path);
  }
  paths.emplace_back(name.file);
  return paths;
}

std::string vendor_version_text(size_t version, const std::string& path) {
  return fmt::format("{}.{}.{}, {}", version / 10000, version / 100 % 100, version % 100, path);
}

std::string missing_text(const std::string& reason, const std::string& fix) {
  return fmt::format("none: {}; {}", reason, fix);
}

VendorLibrary::VendorLibrary(const VendorLibraryName& name) : name_(name) {
  std::string tried;
  for (const fs::path& path : vendor_library_paths(name, program_path())) {
    handle_ = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle_ != nullptr) {
      path_ = path.string();
      return;
    }
    const char* problem = dlerror();
    tried += fmt::format("{}{}", tried.empty() ? "" : "; ", problem != nullptr ? problem : path.string());
  }
  throw UserError(fmt::format("{} cannot be loaded: {}", name.title, tried), name.file, name.fix);
}

void* VendorLibrary::address(const char* symbol) const {
  void* found = dlsym(handle_, symbol);
  if (found == nullptr)
    throw UserError(fmt::format("this {} does not export {}", name_.title, symbol), path_, name_.fix);
  return found;
}

}  // namespace hone
