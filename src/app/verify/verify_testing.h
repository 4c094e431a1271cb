// A reference case with planted errors, for tests of verify.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "app/verify/check.h"
#include "app/verify/golden_case.h"
#include "app/verify/verify.h"
#include "core/base/error.h"
#include "core/text/json.h"
#include "weights/safetensors.h"

namespace hone {

inline const std::filesystem::path kPlantedFrom =
    std::filesystem::path(HONE_SOURCE_DIR) / "tests/fixtures/goldens/qwen3_moe";

/// The names of the required rows that do not hold.
inline std::vector<std::string> failed_rows(const VerifyReport& report) {
  std::vector<std::string> names;
  for (const Check& check : report.checks) {
    if (check.required && !check.ok()) names.push_back(check.name);
  }
  return names;
}

/// A copy of the case whose numbers a test changes; restore() undoes the changes.
class PlantedCase : public ::testing::Test {
 protected:
  PlantedCase()
      : directory_(std::filesystem::path(::testing::TempDir()) /
                   (std::string("hone_") + ::testing::UnitTest::GetInstance()->current_test_info()->name())) {
    std::filesystem::remove_all(directory_);
    std::filesystem::copy(kPlantedFrom, directory_, std::filesystem::copy_options::recursive);
  }
  ~PlantedCase() override { std::filesystem::remove_all(directory_); }

  std::filesystem::path path(const std::string& file) const { return directory_ / file; }
  VerifyOptions options() const {
    VerifyOptions options;
    options.case_directory = directory_;
    options.threads = 1;
    return options;
  }
  std::vector<std::string> verify_failures() const { return failed_rows(verify_case(options())); }

  void restore(const std::string& file) {
    std::filesystem::copy_file(kPlantedFrom / file, path(file), std::filesystem::copy_options::overwrite_existing);
  }

  /// Adds `amount` to one element of a tensor in a file.
  void add(const std::string& file, const std::string& tensor, int64_t element, double amount) {
    const SafetensorsFile tensors(path(file));
    const SafetensorsEntry& entry = tensors.at(tensor);
    ASSERT_EQ(entry.dtype, DType::kF32);
    const auto value =
        static_cast<float>(static_cast<double>(tensors.read_floats(tensor).at(static_cast<size_t>(element))) + amount);
    std::fstream stream(path(file), std::ios::in | std::ios::out | std::ios::binary);
    stream.seekp(static_cast<std::streamoff>(entry.begin) + element * 4);
    stream.write(reinterpret_cast<const char*>(&value), sizeof(value));
    ASSERT_TRUE(stream.good());
  }

  /// Multiplies a float32 tensor in a file.
  static void scale(const std::filesystem::path& file, const std::string& tensor, double factor) {
    const SafetensorsFile tensors(file);
    const SafetensorsEntry& entry = tensors.at(tensor);
    ASSERT_EQ(entry.dtype, DType::kF32);
    std::vector<float> values = tensors.read_floats(tensor);
    for (float& value : values) value = static_cast<float>(value * factor);
    std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
    stream.seekp(static_cast<std::streamoff>(entry.begin));
    stream.write(reinterpret_cast<const char*>(values.data()), static_cast<std::streamsize>(4 * values.size()));
    ASSERT_TRUE(stream.good());
  }
  void scale_tensors(const std::string& file, double factor) {
    std::vector<std::string> names;
    for (const auto& [name, tensor] : read_host_tensors(path(file))) names.push_back(name);
    for (const std::string& name : names) scale(path(file), name, factor);
  }
  /// Multiplies a weight of the model.
  void scale_weight(const std::string& name, double factor) {
    std::ifstream file(path("model/model.safetensors.index.json"));
    scale(path("model") / Json::parse(file)["weight_map"].at(name).get<std::string>(), name, factor);
  }
  void edit_model(const std::function<void(Json&)>& change) {
    std::ifstream file(kPlantedFrom / "model/config.json");
    Json json = Json::parse(file);
    change(json);
    std::ofstream(path("model/config.json")) << json.dump();
  }
  void restore_model() {
    std::filesystem::copy(kPlantedFrom / "model", path("model"),
                          std::filesystem::copy_options::recursive | std::filesystem::copy_options::overwrite_existing);
  }

  /// Changes expected.json.
  void edit(const std::function<void(Json&)>& change) {
    Json json = expected();
    change(json);
    std::ofstream(path("expected.json")) << json.dump();
  }
  Json expected() const {
    std::ifstream file(kPlantedFrom / "expected.json");
    return Json::parse(file);
  }

  /// The error of reading the case, or "no error".
  std::string refusal_of_case() const {
    try {
      GoldenCase::read(directory_);
    } catch (const UserError& error) {
      return error.what();
    }
    return "no error";
  }

  /// Ten times the bound of a gradient: 1e-4 of the larger of the tensor's norm and 1e-4 of the norm of all.
  double ten_gradient_bounds(const std::string& file, const std::string& tensor) const {
    double all = 0;
    const ReferenceTensors tensors = read_reference_tensors(path(file));
    for (const auto& [name, values] : tensors) all += norm(values) * norm(values);
    return 10 * 1e-4 * std::max(norm(tensors.at(tensor)), 1e-4 * std::sqrt(all));
  }

  /// Ten times the bound of the change of one tensor of an adapter.
  double ten_change_bounds(const std::string& run, const std::string& tensor, double bound) const {
    const std::string file = "adapter_model.safetensors";
    const HostTensors change =
        changes(read_host_tensors(path(run + "_init") / file), read_host_tensors(path(run + "_final") / file), file);
    return 10 * bound * norm(change.at(tensor));
  }

 private:
  std::filesystem::path directory_;
};

}  // namespace hone
