// Columns that no format reads and that reverse what a row means: answers that are not wanted, media.
#pragma once

#include <string>

#include "data/column_mapping.h"
#include "data/sample_format.h"

namespace hone {

/// Throws UserError at `where` (file:line), with the ignore_columns to write, for a row of this format with
///   - `label` or `kto_tag` that is false, as JSON or as text, where the row holds a chat or a prompt and its
///   completion;
///   - `rejected`, `rejected_response` or `rejected_messages` that is not empty; and beside it `chosen`, unless it is
///     what `messages` is;
///   - `images`, `videos`, `audios` or the singular of one that is not empty.
/// What the mapping reads or ignores is settled, and so is the one of `chosen` and `rejected` if it reads the other.
void refuse_contrary_columns(const Json& row, SampleFormat format, const std::string& where,
                             const ColumnMapping& mapping);

}  // namespace hone
