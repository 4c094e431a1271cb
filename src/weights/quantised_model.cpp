#include "weights/quantised_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <mutex>
#include <optional>

#include "core/base/error.h"
#include "formats/packed_weights.h"
#include "params/frozen_weights.h"
#include "weights/rounded_base.h"
#include "weights/shard_writer.h"
#include "weights/stored_tensor.h"
#include "weights/tensor_dims.h"

namespace hone {

namespace {

/// Rows that a thread packs: a row of FP8 blocks.
constexpr int64_t kStripe = kFp8Block;

/// One tensor of the source on its way to codes and scales.
class TensorPacker {
 public:
  TensorPacker(const SavedSlice& slice, const Checkpoint& source, const PackedFormat& format, ThreadPool& pool)
      : slice_(slice.slice), order_(slice_.order, slice_.shape), format_(&format), pool_(&pool) {
    order_.interleaved = false;  // quantised files keep the order of outputs
    std::vector<std::string> missing;
    stored_ = StoredTensor::find(source, slice_, missing);
    HONE_ASSERT(stored_ && missing.empty(), slice_.name);
  }

  /// Packs the matrices one after another: their codes go to `writer`, their scales are kept.
  void write_codes(SafetensorsWriter& writer) {
    std::vector<float> file(static_cast<size_t>(order_.numel())), rows(file.size());
    std::vector<std::byte> codes;
    ReadScratch scratch;
    for (int64_t m = 0; m < matrices(); ++m) {
      stored_->read(scratch, m * order_.numel(), order_.numel(), DType::kF32,
                    reinterpret_cast<std::byte*>(file.data()));
      pool_->parallel_for(stripes(), [&](int64_t stripe, int) {
        const int64_t row = stripe * kStripe;
        order_.rows_from_file(file.data(), row, row + rows_of(stripe), rows.data() + row * order_.in);
      });
      pack(rows, codes);
      writer.write(codes.data(), codes.size());
    }
  }
  void write_scales(SafetensorsWriter& writer) const { writer.write(scales_.data(), scales_.size()); }

  double error() const { return error_.relative(); }
  const std::string& name() const { return slice_.name; }

 private:
  int64_t matrices() const { return slice_.shape.numel() / order_.numel(); }

  void pack(const std::vector<float>& rows, std::vector<std::byte>& codes) {
    const PackedLayout first = format_->layout(std::min(kStripe, order_.out), order_.in);
    const int64_t code_bytes = first.elements() * bits() / 8;
    const int64_t scale_bytes = scales_of(first);
    codes.resize(static_cast<size_t>(order_.numel() * bits() / 8));
    const size_t begin = scales_.size();
    scales_.resize(begin + static_cast<size_t>((stripes() - 1) * scale_bytes +
                                               scales_of(format_->layout(rows_of(stripes() - 1), order_.in))));
    std::mutex mutex;
    pool_->parallel_for(stripes(), [&](int64_t stripe, int) {
      const PackedLayout layout = format_->layout(rows_of(stripe), order_.in);
      std::vector<std::byte> chunk(static_cast<size_t>(layout.bytes));
      const float* values = rows.data() + stripe * kStripe * order_.in;
      format_->pack(layout, values, chunk.data());
      std::memcpy(codes.data() + stripe * code_bytes, chunk.data(),
                  static_cast<size_t>(layout.elements() * bits() / 8));
      std::memcpy(scales_.data() + begin + static_cast<size_t>(stripe * scale_bytes), chunk.data() + layout.scales,
                  static_cast<size_t>(scales_of(layout)));
      std::vector<float> back(static_cast<size_t>(layout.elements()));
      unpack(layout, chunk.data(), 0, layout.elements(), back.data());
      RoundingError error;
      error.add(values, back.data(), layout.elements());
      const std::lock_guard lock(mutex);
      error_ += error;
    });
    if (std::isfinite(error_.change)) return;
    throw UserError(fmt::format("'{}' has numbers that are not finite, which the format cannot hold", name()), "",
                    "export the model without --weights");
  }

  int64_t stripes() const { return (order_.out + kStripe - 1) / kStripe; }
  int64_t rows_of(int64_t stripe) const { return std::min(kStripe, order_.out - stripe * kStripe); }
  int64_t bits() const { return format_ == &fp8_format() ? 8 : 4; }
  int64_t scales_of(const PackedLayout& layout) const {
    if (format_ == &mxfp4_format()) return layout.elements() / kMxfp4Block;
    return layout.scale_columns * ((layout.rows + kFp8Block - 1) / kFp8Block) * int64_t{sizeof(float)};
  }

  FileTensor slice_;
  MatrixOrder order_;
  const PackedFormat* format_;
  ThreadPool* pool_;
  std::optional<StoredTensor> stored_;
  std::vector<std::byte> scales_;
  RoundingError error_;
};

/// Whether the files of a quantised model have this parameter's tensor in the format.
bool takes(const Parameter& p, const FileTensor& slice, QuantMethod method) {
  const MatrixOrder order(slice.order, slice.shape);
  if (slice.shape.rank() < 2) return false;
  if (method == QuantMethod::kMxfp4) return is_experts(p) && order.transposed && order.in % kMxfp4Block == 0;
  return is_base_weight(p) && slice.order == FileOrder::kSame;
}

/// Codes and scales of a tensor.
void plan_packed(const SavedSlice& slice, const std::shared_ptr<TensorPacker>& packer, QuantMethod method,
                 std::vector<PlannedTensor>& tensors) {
  const auto codes = [packer](SafetensorsWriter& writer) { packer->write_codes(writer); };
  const auto scales = [packer](SafetensorsWriter& writer) { packer->write_scales(writer); };
  const std::string& name = slice.announced.name;
  std::vector<int64_t> dims = dims_of(slice.slice.shape);
  if (method == QuantMethod::kMxfp4) {
    dims.back() /= kMxfp4Block;
    std::vector<int64_t> of_codes = dims;
    of_codes.push_back(kMxfp4Block / 2);
    tensors.push_back({{name + "_blocks", DType::kU8, of_codes}, codes});
    tensors.push_back({{name + "_scales", DType::kU8, dims}, scales});
    return;
  }
  tensors.push_back({{name, DType::kU8, dims, true}, codes});
  for (size_t i = dims.size() - 2; i < dims.size(); ++i) dims[i] = (dims[i] + kFp8Block - 1) / kFp8Block;
  tensors.push_back({{name + "_scale_inv", DType::kF32, dims}, scales});
}

}  // namespace

std::vector<RoundedTensor> save_quantised(const std::filesystem::path& directory, const ParameterStore& store,
                                          const Checkpoint& source, const CheckpointMap& map, QuantMethod method,
                                          ThreadPool& pool, const SaveOptions& options) {
  HONE_ASSERT(!source.quantization() && method != QuantMethod::kBitsandbytes);
  const PackedFormat& format = method == QuantMethod::kMxfp4 ? mxfp4_format() : fp8_format();
  std::vector<PlannedTensor> tensors;
  std::vector<std::shared_ptr<TensorPacker>> packers;
  for (const SavedSlice& slice : saved_slices(store, &source, &map, options.dtype)) {
    if (takes(*slice.parameter, slice.slice, method)) {
      packers.push_back(std::make_shared<TensorPacker>(slice, source, format, pool));
      plan_packed(slice, packers.back(), method, tensors);
      continue;
    }
    std::vector<std::string> missing;
    const auto stored = StoredTensor::find(source, slice.slice, missing);
    tensors.push_back({slice.announced, [stored = *stored, announced = slice.announced](SafetensorsWriter& writer) {
                         write_stored(writer, stored, announced.dtype, announced.numel());
                       }});
  }
  if (packers.empty()) {
    throw UserError(method == QuantMethod::kMxfp4
                        ? "MXFP4 holds the experts of gpt-oss, and this model has none like them"
                        : "no matrix of this model can be held in FP8 blocks",
                    directory.string(), "use another value of --weights, or none");
  }
  for (PlannedTensor& carried : carried_tensors(source, map)) tensors.push_back(std::move(carried));
  write_shards(directory, tensors, options.max_shard_size, options.checksums);
  std::vector<RoundedTensor> rounded;
  for (const auto& packer : packers) rounded.push_back({packer->name(), packer->error()});
  return rounded;
}

}  // namespace hone
