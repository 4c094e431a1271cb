// The program `hone` of a release: runs the libhone that was installed with it, which holds the code, so that a release
// holds it once.
#include <dlfcn.h>
#include <glob.h>
#include <unistd.h>

#include <climits>
#include <cstdio>
#include <cstring>

namespace {

/// Where libhone may be, seen from the program's folder: beside it; as install.sh and `cmake --install` put it; and as
/// pip does, for an environment or the system, and with --target.
constexpr const char* kPlaces[] = {
    "libhone.so.1",
    "lib/libhone.so.1",
    "../lib{,64}/libhone.so.1",
    "../lib{,64}/python3*/{site,dist}-packages/hone/libhone.so.1",
    "../hone/libhone.so.1",
};

using Main = int (*)(int, char**);

/// The program in the library at `path`, or null if it is not this release's. Says why a library does not load.
Main program_in(const char* path) {
  void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    std::fprintf(stderr, "%s\n", dlerror());
    return nullptr;
  }
  const auto version = reinterpret_cast<const char* (*)()>(dlsym(library, "hone_version"));
  const auto program = reinterpret_cast<Main>(dlsym(library, "hone_program_main"));
  if (version != nullptr && program != nullptr && std::strcmp(version(), HONE_VERSION) == 0) return program;
  dlclose(library);
  return nullptr;
}

}  // namespace

int main(int argc, char** argv) {
  char folder[PATH_MAX] = "";
  const ssize_t length = readlink("/proc/self/exe", folder, sizeof folder - 1);
  if (char* slash = length > 0 ? std::strrchr(folder, '/') : nullptr) slash[1] = '\0';
  for (const char* place : kPlaces) {
    char pattern[2 * PATH_MAX];
    std::snprintf(pattern, sizeof pattern, "%s%s", folder, place);
    glob_t found = {};
    glob(pattern, GLOB_BRACE, nullptr, &found);
    for (size_t i = 0; i < found.gl_pathc; ++i) {
      if (const Main program = program_in(found.gl_pathv[i])) return program(argc, argv);
    }
    globfree(&found);
  }
  std::fprintf(stderr, "error: libhone.so.1 of version %s, which holds the program, is not where it was installed\n",
               HONE_VERSION);
  for (const char* place : kPlaces) std::fprintf(stderr, "  tried: %s%s\n", folder, place);
  std::fputs("  fix:   install Hone again\n", stderr);
  return 2;
}
