// Which experts the sentences of a data file go to.
#pragma once

#include <filesystem>

#include "core/stream.h"
#include "train/engine.h"

namespace hone {

/// Expert choices of the first `samples` chats of a data file, by layer and expert.
RoutingLoad measure_expert_load(const std::filesystem::path& model, const std::filesystem::path& data, int64_t samples,
                                Stream& stream);

}  // namespace hone
