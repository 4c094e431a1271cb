#include "weights/kt_manifest.h"

#include <fmt/format.h>
#include <openssl/evp.h>

#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "core/files/durable_file.h"
#include "core/files/file_bytes.h"
#include "core/text/json.h"
#include "core/text/untrusted_json.h"
#include "weights/adapter_layout.h"
#include "weights/safetensors.h"

namespace hone {
namespace {

namespace fs = std::filesystem;

constexpr int kManifestVersion = 1;
constexpr const char* kConfigName = "adapter_config.json";
constexpr const char* kMainName = "adapter_model.safetensors";
constexpr const char* kWayOut =
    "copy the adapter again; if a file was edited on purpose, delete the manifest to load the files as they are";

/// The SHA-256 of a file, as 64 hexadecimal digits.
std::string sha256_of(const FileBytes& file) {
  constexpr uint64_t kDigestPiece = 4 << 20;
  const std::unique_ptr<EVP_MD_CTX, void (*)(EVP_MD_CTX*)> context(EVP_MD_CTX_new(), EVP_MD_CTX_free);
  bool works = context && EVP_DigestInit_ex(context.get(), EVP_sha256(), nullptr) == 1;
  std::vector<std::byte> buffer(std::min(kDigestPiece, file.size()));
  for (uint64_t at = 0; works && at < file.size(); at += buffer.size()) {
    const uint64_t count = std::min<uint64_t>(buffer.size(), file.size() - at);
    file.read(at, buffer.data(), count);
    works = EVP_DigestUpdate(context.get(), buffer.data(), count) == 1;
  }
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  unsigned int bytes = 0;
  works = works && EVP_DigestFinal_ex(context.get(), digest.data(), &bytes) == 1;
  HONE_ASSERT(works, "SHA-256");
  std::string text;
  for (unsigned int i = 0; i < bytes; ++i) text += fmt::format("{:02x}", digest[i]);
  return text;
}

Json record_of(const fs::path& path) {
  const FileBytes file(path);
  return {{"size", file.size()}, {"sha256", sha256_of(file)}};
}

/// Shape and dtype of each tensor of kKtFile.
Json tensors_of(const SafetensorsFile& file) {
  Json tensors = Json::object();
  for (const SafetensorsEntry& entry : file.entries()) {
    HONE_ASSERT(entry.dtype == DType::kBF16, entry.name);
    tensors[entry.name] = {{"shape", entry.shape}, {"dtype", "BF16"}};
  }
  return tensors;
}

[[noreturn]] void mismatch(const fs::path& manifest, const std::string& why) {
  throw UserError("the adapter does not match its manifest: " + why, manifest.string(), kWayOut);
}

void check_file(const fs::path& manifest, const std::string& name, const Json& record) {
  const std::optional<uint64_t> size =
      record.is_object() && record.contains("size") ? whole_number<uint64_t>(record["size"]) : std::nullopt;
  if (!size || !record.contains("sha256") || !record["sha256"].is_string()) {
    mismatch(manifest, fmt::format("it has no size and sha256 of '{}'", name));
  }
  if (name.empty() || name == ".." || fs::path(name).has_parent_path()) {
    mismatch(manifest, fmt::format("it lists '{}', which is not in this folder", name));
  }
  const fs::path path = manifest.parent_path() / name;
  std::error_code error;
  if (!fs::is_regular_file(path, error)) mismatch(manifest, name + " is missing");
  const FileBytes file(path);
  if (file.size() != *size) mismatch(manifest, fmt::format("{} has {} bytes, not {}", name, file.size(), *size));
  const std::string digest = sha256_of(file), stated = record["sha256"];
  if (digest != stated) mismatch(manifest, fmt::format("{} has the SHA-256 {}, not {}", name, digest, stated));
}

/// The manifest lists the tensors of kKtFile too.
void check_kt_tensors(const fs::path& manifest, const Json& record) {
  const Json tensors = record.value("tensors", Json()), count = record.value("tensor_count", Json());
  if (tensors.is_null() && count.is_null()) return;
  const SafetensorsFile file(manifest.parent_path() / kKtFile);
  if (!count.is_null() && count != file.entries().size()) {
    mismatch(manifest, fmt::format("{} has {} tensors, not {}", kKtFile, file.entries().size(), count.dump()));
  }
  if (tensors.is_null()) return;
  if (!tensors.is_object()) mismatch(manifest, fmt::format("it does not list the tensors of {}", kKtFile));
  for (const SafetensorsEntry& entry : file.entries()) {
    const Json stated = tensors.value(entry.name, Json());
    if (!stated.is_object()) mismatch(manifest, fmt::format("it does not list '{}' of {}", entry.name, kKtFile));
    if (stated.value("shape", Json()) != Json(entry.shape)) {
      mismatch(manifest, fmt::format("'{}' has the shape {}, not {}", entry.name, entry.shape_text(),
                                     stated.value("shape", Json()).dump()));
    }
  }
  for (const auto& [name, stated] : tensors.items()) {
    if (file.find(name) == nullptr) mismatch(manifest, fmt::format("{} has no tensor '{}'", kKtFile, name));
  }
}

}  // namespace

void write_kt_manifest(const fs::path& folder) {
  if (!fs::exists(folder / kKtFile)) return;
  const Json config = read_json(folder / kConfigName);
  Json artifacts = Json::object();
  for (const char* name : {kConfigName, kMainName, kKtFile}) artifacts[name] = record_of(folder / name);
  const Json tensors = tensors_of(SafetensorsFile(folder / kKtFile));
  artifacts[kKtFile]["tensor_count"] = tensors.size();
  artifacts[kKtFile]["tensors"] = tensors;
  const Json manifest = {{"version", kManifestVersion},
                         {"status", "ready"},
                         {"expert_weight_format", "bf16"},
                         {"base", {{"model_name_or_path", config.at("base_model_name_or_path")}}},
                         {"lora", {{"rank", config.at("r")}, {"alpha", config.at("lora_alpha")}}},
                         {"artifacts", artifacts}};
  write_durably(folder / kKtManifestName, manifest.dump(2) + "\n");
}

void check_kt_manifest(const fs::path& folder) {
  const fs::path path = folder / kKtManifestName;
  const std::optional<Json> read = read_json_if_there(path);
  if (!read) return;
  const Json& manifest = *read;
  if (!manifest.is_object()) mismatch(path, "it is not a JSON object");
  if (manifest.value("version", Json()) != kManifestVersion || manifest.value("status", Json()) != "ready") {
    throw UserError(fmt::format("the adapter's manifest has version {} and status {}, not version {} and \"ready\"",
                                manifest.value("version", Json()).dump(), manifest.value("status", Json()).dump(),
                                kManifestVersion),
                    path.string(), "the program that wrote it did not finish, or is newer: write the adapter again");
  }
  const Json artifacts = manifest.value("artifacts", Json());
  if (!artifacts.is_object()) mismatch(path, "it lists no artifacts");
  for (const char* name : {kConfigName, kKtFile}) {
    if (!artifacts.contains(name)) mismatch(path, fmt::format("it does not list {}", name));
  }
  for (const auto& [name, record] : artifacts.items()) check_file(path, name, record);
  check_kt_tensors(path, artifacts[kKtFile]);
}

}  // namespace hone
