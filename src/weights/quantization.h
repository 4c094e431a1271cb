// What config.json says of the format of quantised weights.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "core/text/json_fwd.h"
#include "formats/packed_weights.h"

namespace hone {

/// The formats that are read. Weights are dequantised while they load, or stay packed where base_weight_dtype says so;
/// nothing is written in them.
enum class QuantMethod {
  kBlockFp8,  ///< "fp8": e4m3 weights, a scale for each block of weight_block_size rows and columns (128 x 128; null: a
              ///< whole matrix)
  kMxfp4,     ///< "mxfp4": two e2m1 numbers a byte, an e8m0 scale for 32 along the input dimension
  kBitsandbytes,  ///< "bitsandbytes": weights/bitsandbytes_matrix.h
  kCompressed,    ///< "compressed-tensors": weights/compressed_matrix.h, and FP8 by rows, blocks or matrices
  kModelopt,      ///< "modelopt": NVFP4 and FP8, the same files
};

/// Both sizes of a block that is a whole matrix (weight_block_size null).
inline constexpr int64_t kWholeMatrix = int64_t{1} << 40;

struct Quantization {
  QuantMethod method = QuantMethod::kBlockFp8;
  int64_t block_rows = 128, block_columns = 128;  ///< kBlockFp8: of output and input features; or kWholeMatrix

  bool eight_bits = false, nested = false;  ///< kBitsandbytes: load_in_8bit, bnb_4bit_use_double_quant

  std::string format;                    ///< kCompressed, kModelopt: "pack-quantized", "NVFP4"
  const PackedFormat* packed = nullptr;  ///< kCompressed: what its weights are in, if a packed format is the same
  std::vector<std::string> dense = {};   ///< kCompressed: modules that are not quantised, patterns as params/pattern.h

  /// "block FP8"
  std::string name() const;
  /// The packed format that the weight of this name probably has in the files, if config.json is all that is known of
  /// them; null: none.
  const PackedFormat* packed_format(const std::string& weight, bool routed_expert) const;
  /// Whether a tensor of a file, which belongs to no weight, is a scale with which other programs round activations or
  /// keys and values in products of quantised weights.
  bool rounds_activations(const std::string& tensor) const;
};

/// quantization_config of a config.json; none if it has none. UserError, naming `file`, for a method that is not read.
std::optional<Quantization> read_quantization(const Json& config, const std::string& file);

/// The same for the config.json of a checkpoint folder; none without such a file.
std::optional<Quantization> read_quantization(const std::filesystem::path& directory);

/// config.json of a model that save_quantised (weights/quantised_model.h) writes; `dense` names modules of linear
/// weights that are not quantised.
Json quantized_config(Json config, QuantMethod method, const std::vector<std::string>& dense);

/// What config.json says once the weights are saved dequantised: no quantization_config, dtype bfloat16. Others stay.
Json unquantized_config(Json config);

}  // namespace hone
