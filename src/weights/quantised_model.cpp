#include "weights/quantised_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <mutex>
#include <optional>

#include "core/error.h"
#include "formats/packed_weights.h"
#include "params/frozen_weights.h"
#include "weights/shard_writer.h"
#include "weights/stored_tensor.h"

namespace hone {

namespace {

constexpr int64_t kPiece = int64_t{1} << 20;  // elements

/// Rows that a thread packs: a row of FP8 blocks.
constexpr int64_t kStripe = kFp8Block;

std::vector<int64_t> dims_of(const Shape& shape) {
  std::vector<int64_t> dims;
  for (int i = 0; i < shape.rank(); ++i) dims.push_back(shape[i]);
  return dims;
}

/// One tensor of the source on its way to codes and scales.
class TensorPacker {
 public:
  TensorPacker(const SavedSlice& slice, const Checkpoint& source, const PackedFormat& format, ThreadPool& pool)
      : slice_(slice.slice), order_(slice_.order, slice_.shape), format_(&format), pool_(&pool) {
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
      if (order_.transposed) {
        transpose(file, rows);
      } else {
        rows.swap(file);
      }
      pack(rows, codes);
      writer.write(codes.data(), codes.size());
      if (!order_.transposed) rows.swap(file);
    }
  }
  void write_scales(SafetensorsWriter& writer) const { writer.write(scales_.data(), scales_.size()); }

  double error() const { return norm_ > 0 ? std::sqrt(error_ / norm_) : 0; }
  const std::string& name() const { return slice_.name; }

 private:
  int64_t matrices() const { return slice_.shape.numel() / order_.numel(); }

  /// [in, out] of a file to [out, in], whose outputs stay in the file's order, as MXFP4 files have them.
  void transpose(const std::vector<float>& file, std::vector<float>& rows) const {
    pool_->parallel_for(order_.out, [&](int64_t row, int) {
      for (int64_t column = 0; column < order_.in; ++column) {
        rows[static_cast<size_t>(row * order_.in + column)] = file[static_cast<size_t>(column * order_.out + row)];
      }
    });
  }

  void pack(const std::vector<float>& rows, std::vector<std::byte>& codes) {
    const int64_t stripes = (order_.out + kStripe - 1) / kStripe;
    const PackedLayout first = format_->layout(std::min(kStripe, order_.out), order_.in);
    const int64_t code_bytes = first.elements() * bits() / 8;
    const int64_t scale_bytes = scales_of(first);
    codes.resize(static_cast<size_t>(order_.numel() * bits() / 8));
    const size_t begin = scales_.size();
    scales_.resize(begin + static_cast<size_t>((stripes - 1) * scale_bytes +
                                               scales_of(format_->layout(rows_of(stripes - 1), order_.in))));
    std::mutex mutex;
    pool_->parallel_for(stripes, [&](int64_t stripe, int) {
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
      double error = 0, norm = 0;
      for (size_t i = 0; i < back.size(); ++i) {
        const double w = values[i], change = double{back[i]} - w;
        error += change * change;
        norm += w * w;
      }
      const std::lock_guard lock(mutex);
      error_ += error;
      norm_ += norm;
    });
    if (std::isfinite(error_)) return;
    throw UserError(fmt::format("'{}' has numbers that are not finite, which the format cannot hold", name()), "",
                    "export the model without --weights");
  }

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
  double error_ = 0, norm_ = 0;
};

/// Whether the files of a quantised model have this parameter's tensor in the format.
bool takes(const Parameter& p, const FileTensor& slice, QuantMethod method) {
  const MatrixOrder order(slice.order, slice.shape);
  if (slice.shape.rank() < 2) return false;
  if (method == QuantMethod::kMxfp4) return is_routed_expert(p) && order.transposed && order.in % kMxfp4Block == 0;
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

void copy(SafetensorsWriter& writer, const StoredTensor& stored, DType dtype, int64_t numel) {
  ReadScratch scratch;
  std::vector<std::byte> bytes(static_cast<size_t>(kPiece) * size_of(dtype));
  for (int64_t begin = 0; begin < numel; begin += kPiece) {
    const int64_t count = std::min(kPiece, numel - begin);
    stored.read(scratch, begin, count, dtype, bytes.data());
    writer.write(bytes.data(), static_cast<uint64_t>(count) * size_of(dtype));
  }
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
                         copy(writer, stored, announced.dtype, announced.numel());
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
