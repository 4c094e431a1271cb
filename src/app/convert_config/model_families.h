// Families of models by their usual names, for models whose config.json is not here.
#pragma once

#include <span>
#include <string>

namespace hone {

struct ModelFamily {
  const char* names;       ///< a glob for the last part of a path or id, in lower case
  const char* title;       ///< "Gemma 3"
  const char* model_type;  ///< as in its config.json
  bool media = false;      ///< made for images, video or audio
};

/// All of them; the first that matches a name counts.
std::span<const ModelFamily> model_families();

/// The family that the last part of a path or id plainly names; nullptr for other names.
const ModelFamily* family_named(const std::string& model);

/// The quantised files that a name says it holds and that Hone does not read, such as "GPTQ"; "" for other names.
std::string unread_files_named(const std::string& model);

/// The shape that Hone knows by name (app/bench/bench_shapes.h) of a name that begins with it; "" for other names.
std::string shape_named(const std::string& model);

}  // namespace hone
