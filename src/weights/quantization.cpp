#include "weights/quantization.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "core/base/error.h"
#include "core/text/json.h"
#include "core/text/untrusted_json.h"
#include "params/pattern.h"

namespace hone {

namespace {

constexpr const char *kQuantizationKey = "quantization_config", *kTextKey = "text_config";
constexpr const char* kReadable =
    "use the bfloat16 checkpoint of the model, or one quantised as fp8 blocks, mxfp4, by bitsandbytes or in the "
    "formats "
    "of compressed-tensors";
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

bool is_empty(const Json& object, const char* key) { return !object.contains(key) || object[key].empty(); }

/// The packed format that is the same as `weights` of a group of compressed-tensors; null if none is.
const PackedFormat* packed_format_of(const Json& weights) {
  if (!weights.is_object() || weights.value("symmetric", Json(true)) != true) return nullptr;
  const Json bits = weights.value("num_bits", Json()), type = weights.value("type", Json("int"));
  const std::optional<int64_t> group = whole_number<int64_t>(weights.value("group_size", Json()));
  if (type == "float") return bits == 4 && group == kMxfp4Block ? &mxfp4_format() : bits == 8 ? &fp8_format() : nullptr;
  if (bits == 8) return weights.value("strategy", Json()) == "channel" ? &packed_int8_format() : nullptr;
  if (bits != 4 || !group || *group <= 0 || *group % 32 != 0) return nullptr;
  return &int4_format(*group % 128 == 0 ? 128 : 32);
}

void read_compressed(const Json& quantization, const std::string& file, Quantization& result) {
  result.method = QuantMethod::kCompressed;
  const Json format = quantization.value("format", Json("pack-quantized"));
  constexpr std::array kFormats = {"pack-quantized",       "int-quantized",        "float-quantized", "naive-quantized",
                                   "nvfp4-pack-quantized", "mxfp4-pack-quantized", "mixed-precision"};
  if (std::ranges::none_of(kFormats, [&](const char* name) { return format == name; })) refuse("format", format, file);
  result.format = format.get<std::string>();
  if (const Json status = quantization.value("quantization_status", Json("compressed")); status != "compressed") {
    refuse("quantization_status", status, file);
  }
  // Rotations of activations, and zeros that are left out, change what the codes mean.
  for (const char* key : {"transform_config", "sparsity_config"}) {
    if (is_empty(quantization, key)) continue;
    const Json& value = quantization[key];
    const bool none =
        value.is_object() && value.value("format", Json("dense")) == "dense" && is_empty(value, "config_groups");
    if (!none || (value.contains("sparsity_structure") && value["sparsity_structure"] == "2:4"))
      refuse(key, value, file);
  }
  if (const Json ignore = quantization.value("ignore", Json::array()); ignore.is_array()) {
    for (const Json& module : ignore) {
      if (module.is_string()) result.dense.push_back(module.get<std::string>());
    }
  }
  if (const Json groups = quantization.value("config_groups", Json::object()); groups.is_object() && !groups.empty()) {
    const Json& first = groups.front();
    if (first.is_object() && first.contains("weights")) result.packed = packed_format_of(first["weights"]);
  }
}

void read_modelopt(const Json& quantization, const std::string& file, Quantization& result) {
  result.method = QuantMethod::kModelopt;
  const Json algorithm = quantization.value("quant_algo", Json());
  if (algorithm != "NVFP4" && algorithm != "FP8") refuse("quant_algo", algorithm, file);
  result.format = algorithm.get<std::string>();
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
    case QuantMethod::kCompressed:
      return fmt::format("compressed-tensors ({})", format);
    case QuantMethod::kModelopt:
      return fmt::format("ModelOpt {}", format);
  }
  return "";
}

const PackedFormat* Quantization::packed_format(const std::string& weight, bool routed_expert) const {
  switch (method) {
    case QuantMethod::kBlockFp8:
      return &fp8_format();
    case QuantMethod::kMxfp4:
      return routed_expert ? &mxfp4_format() : nullptr;
    case QuantMethod::kBitsandbytes:
      return eight_bits ? &packed_int8_format() : nested ? &nf4_format() : &nf4_float_scales_format();
    case QuantMethod::kCompressed: {
      const auto names = [&](const std::string& module) { return Pattern(module).matches(weight); };
      return std::ranges::any_of(dense, names) ? nullptr : packed;
    }
    case QuantMethod::kModelopt:
      return nullptr;
  }
  return nullptr;
}

bool Quantization::rounds_activations(const std::string& tensor) const {
  if (method == QuantMethod::kBlockFp8) return tensor.ends_with("activation_scale");
  if (method != QuantMethod::kCompressed && method != QuantMethod::kModelopt) return false;
  constexpr std::array kEnds = {".input_scale", ".input_zero_point", ".input_global_scale", ".output_scale",
                                ".k_scale",     ".v_scale",          ".k_proj.k_scale",     ".v_proj.v_scale"};
  return std::ranges::any_of(kEnds, [&](const char* end) { return tensor.ends_with(end); });
}

std::optional<Quantization> read_quantization(const Json& config, const std::string& file) {
  if (!config.is_object()) return std::nullopt;
  if (!config.contains(kQuantizationKey) || config[kQuantizationKey].is_null()) {
    // A model with images may say it of its text model.
    return config.contains(kTextKey) ? read_quantization(config[kTextKey], file) : std::nullopt;
  }
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
  } else if (method == "compressed-tensors") {
    read_compressed(quantization, file, result);
  } else if (method == "modelopt") {
    read_modelopt(quantization, file, result);
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
  const bool in_text =
      config.contains(kTextKey) && config[kTextKey].is_object() && config[kTextKey].erase(kQuantizationKey) > 0;
  if (config.erase(kQuantizationKey) == 0 && !in_text) return config;
  config.erase("torch_dtype");
  config["dtype"] = "bfloat16";
  return config;
}

}  // namespace hone
