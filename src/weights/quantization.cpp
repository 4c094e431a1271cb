#include "weights/quantization.h"

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/text/json.h"
#include "core/text/untrusted_json.h"

namespace hone {

namespace {

constexpr const char* kQuantizationKey = "quantization_config";
constexpr const char* kReadable =
    "use the bfloat16 checkpoint of the model, or one quantised as fp8 blocks, mxfp4 or by bitsandbytes";
constexpr const char* kRounded =
    "use the bfloat16 checkpoint of the model with base_weight_dtype: int4_128 or nf4, which rounds it while it is "
    "read";
constexpr int64_t kLargestQuantizedBlock = 1 << 20;

[[noreturn]] void refuse(const std::string& field, const Json& value, const std::string& file) {
  throw UserError(fmt::format("{}.{}: {} is not supported", kQuantizationKey, field, value.dump()), file, kReadable);
}

void read_block_size(const Json& quantization, const std::string& file, Quantization& result) {
  constexpr const char* kBlockSize = "weight_block_size";
  if (!quantization.contains(kBlockSize)) return;  // 128 x 128, as transformers takes it
  const Json& size = quantization[kBlockSize];
  if (size.is_null()) {
    result.block_rows = result.block_columns = kWholeMatrix;
    return;
  }
  const auto is_size = [](const Json& n) {
    return n.is_number_integer() && n.get<int64_t>() > 0 && n.get<int64_t>() <= kLargestQuantizedBlock;
  };
  if (!size.is_array() || size.size() != 2 || !is_size(size[0]) || !is_size(size[1])) refuse(kBlockSize, size, file);
  result.block_rows = size[0].get<int64_t>();
  result.block_columns = size[1].get<int64_t>();
}

bool is_true(const Json& quantization, const char* key) {
  return quantization.contains(key) && quantization[key] == true;
}

/// Methods whose checkpoints users have, and which are not read.
[[noreturn]] void refuse_method(const Json& method, const std::string& file) {
  for (const auto& [name, title] :
       {std::pair{"gptq", "GPTQ"}, {"awq", "AWQ"}, {"auto-round", "AutoRound"}, {"hqq", "HQQ"}}) {
    if (method == name)
      throw UserError(fmt::format("{} checkpoints are not read ({}.quant_method)", title, kQuantizationKey), file,
                      kRounded);
  }
  refuse("quant_method", method, file);
}

}  // namespace

std::string Quantization::name() const {
  switch (method) {
    case QuantMethod::kBlockFp8:
      return block_rows == kWholeMatrix ? "FP8" : "block FP8";
    case QuantMethod::kMxfp4:
      return "MXFP4";
    case QuantMethod::kBitsandbytes:
      return eight_bits ? "bitsandbytes int8" : "bitsandbytes 4 bits";
  }
  return "";
}

std::optional<Quantization> read_quantization(const Json& config, const std::string& file) {
  if (!config.is_object() || !config.contains(kQuantizationKey) || config[kQuantizationKey].is_null())
    return std::nullopt;
  const Json& quantization = config[kQuantizationKey];
  if (!quantization.is_object()) throw UserError(fmt::format("{} is not an object", kQuantizationKey), file);
  const Json method = quantization.contains("quant_method") ? quantization["quant_method"] : Json(nullptr);
  Quantization result;
  if (method == "mxfp4") {
    result.method = QuantMethod::kMxfp4;
  } else if (method == "fp8") {
    const Json format = quantization.contains("fmt") ? quantization["fmt"] : Json("e4m3");
    if (format != "e4m3" && format != "float8_e4m3fn") refuse("fmt", format, file);
    read_block_size(quantization, file, result);
  } else if (method == "bitsandbytes") {
    result.method = QuantMethod::kBitsandbytes;
    result.eight_bits = is_true(quantization, "load_in_8bit") || is_true(quantization, "_load_in_8bit");
    result.nested = is_true(quantization, "bnb_4bit_use_double_quant");
  } else {
    refuse_method(method, file);
  }
  return result;
}

std::optional<Quantization> read_quantization(const std::filesystem::path& directory) {
  const std::filesystem::path path = directory / "config.json";
  const std::optional<Json> config = read_json_if_there(path);
  return config ? read_quantization(*config, path.string()) : std::nullopt;
}

Json quantized_config(Json config, QuantMethod method, const std::vector<std::string>& dense) {
  Json quantization = {{"quant_method", method == QuantMethod::kMxfp4 ? "mxfp4" : "fp8"},
                       {"modules_to_not_convert", dense}};
  if (method == QuantMethod::kBlockFp8) {
    quantization["activation_scheme"] = "dynamic";
    quantization["fmt"] = "e4m3";
    quantization["weight_block_size"] = {128, 128};
  }
  config[kQuantizationKey] = quantization;
  return config;
}

Json unquantized_config(Json config) {
  if (config.erase(kQuantizationKey) == 0) return config;
  config.erase("torch_dtype");
  config["dtype"] = "bfloat16";
  return config;
}

}  // namespace hone
