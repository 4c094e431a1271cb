#include "config/resume_from.h"

#include <utility>

namespace hone {

ResumeFrom::ResumeFrom(std::string text)
    : kind_(text == "false"  ? Kind::kNothing
            : text == "auto" ? Kind::kNewest
            : text == "best" ? Kind::kBest
                             : Kind::kPath),
      text_(std::move(text)) {}

}  // namespace hone
