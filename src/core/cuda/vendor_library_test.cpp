#include "core/cuda/vendor_library.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "core/base/error.h"

namespace hone {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr VendorLibraryName kName = {"Sums", "libsums.so.13", "nvidia/cu13/lib", "pip install 'hone[sums]'"};

class VendorLibraryPaths : public testing::Test {
 protected:
  VendorLibraryPaths() : root_(fs::path(testing::TempDir()) / "hone_vendor") { fs::remove_all(root_); }
  ~VendorLibraryPaths() override {
    unsetenv("VIRTUAL_ENV");
    fs::remove_all(root_);
  }

  fs::path file(const std::string& name) const {
    fs::create_directories((root_ / name).parent_path());
    std::ofstream(root_ / name) << "no library";
    return root_ / name;
  }
  std::vector<fs::path> paths(const std::string& program) const { return vendor_library_paths(kName, root_ / program); }

  const fs::path root_;
};

TEST_F(VendorLibraryPaths, AnEnvironmentsPackagesComeBeforeTheSystem) {
  const fs::path old = file("venv/lib/python3.11/site-packages/nvidia/cu13/lib/libsums.so.13");
  const fs::path newest = file("venv/lib/python3.13/site-packages/nvidia/cu13/lib/libsums.so.13");
  const fs::path debians = file("venv/lib/python3/dist-packages/nvidia/cu13/lib/libsums.so.13");
  file("venv/lib/python3.13/site-packages/nvidia/cublas/lib/libsums.so.12");
  file("venv/lib/perl5/site-packages/nvidia/cu13/lib/libsums.so.13");
  for (const char* program : {"venv/bin/hone", "venv/lib/hone/hone"})
    EXPECT_THAT(paths(program), ElementsAre(newest, old, debians, "libsums.so.13"));
  EXPECT_THAT(paths("elsewhere/hone"), ElementsAre("libsums.so.13"));
  setenv("VIRTUAL_ENV", (root_ / "venv").c_str(), 1);
  EXPECT_THAT(paths("elsewhere/hone"), ElementsAre(newest, old, debians, "libsums.so.13"));
}

TEST_F(VendorLibraryPaths, BesideTheProgramAndItsModule) {
  const fs::path packed = file("dist/lib/libsums.so.13");
  EXPECT_THAT(paths("dist/hone"), ElementsAre(packed, "libsums.so.13"));
  const fs::path package = file("packages/nvidia/cu13/lib/libsums.so.13");
  EXPECT_THAT(paths("packages/hone/hone"), ElementsAre(package, "libsums.so.13"));
  EXPECT_THAT(paths("packages/hone/bin/hone"), ElementsAre(package, "libsums.so.13"));
}

TEST(VendorLibrary, TheFirstThatLoadsIsTaken) {
  const VendorLibrary library({"Mathematics", "libm.so.6", "nothing", ""});
  EXPECT_EQ(library.path(), "libm.so.6");
  double (*cosine)(double) = nullptr;
  library.find(cosine, "cos");
  EXPECT_EQ(cosine(0), 1);
}

TEST(VendorLibrary, WhatIsMissingIsNamedWithItsInstallation) {
  try {
    const VendorLibrary library(kName);
    FAIL();
  } catch (const UserError& error) {
    EXPECT_THAT(error.message(), AllOf(HasSubstr("Sums cannot be loaded"), HasSubstr("libsums.so.13")));
    EXPECT_EQ(error.fix(), "pip install 'hone[sums]'");
  }
  const VendorLibrary library({"Mathematics", "libm.so.6", "nothing", "install it"});
  void (*none)() = nullptr;
  try {
    library.find(none, "no_such_function");
    FAIL();
  } catch (const UserError& error) {
    EXPECT_EQ(error.message(), "this Mathematics does not export no_such_function");
  }
}

}  // namespace
}  // namespace hone
