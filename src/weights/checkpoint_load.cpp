// Reading the weights of a checkpoint into parameters.
#include "weights/piece_loader.h"

namespace hone {

void load_parameters(const Checkpoint& checkpoint, const CheckpointMap& map, ParameterStore& store, ThreadPool& pool,
                     const std::function<void(int64_t)>& progress) {
  std::vector<LoadedSource> sources;
  for (const Parameter& parameter : store.all()) {
    const auto layout = map.layouts.find(&parameter);
    if (layout == map.layouts.end() || !parameter.value().filled_here()) continue;
    std::vector<LoadedSource> of_parameter =
        sources_of(checkpoint, layout->second, parameter, parameter.value().stored(), parameter.state().master);
    std::move(of_parameter.begin(), of_parameter.end(), std::back_inserter(sources));
  }
  const std::vector<LoadedPiece> pieces = pieces_of(sources);
  if (pieces.empty()) return;
  int64_t bytes_read = 0;
  PieceLoaders(pool.size()).load(pieces, pool, [&](const LoadedPiece& piece) {
    bytes_read += piece.source->stored.bytes_of(piece.count);
    if (progress) progress(bytes_read);
  });
}

}  // namespace hone
