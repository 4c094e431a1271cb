// Numbers in a readable form: 1.2 GB, 3.4k, 1h02m, 4,194,304.
#pragma once

#include <concepts>
#include <cstdint>
#include <string>

namespace hone {

/// Bytes in decimal units (1 kB = 1000 B): "512 B", "1.2 kB", "12.3 GB", "999 MB".
std::string human_bytes(double bytes);
std::string human_bytes(std::integral auto bytes) { return human_bytes(static_cast<double>(bytes)); }

/// A count with a decimal suffix: "840", "3.4k", "12.3M", "30.5B", "1.2T"; below 1000 at most one decimal.
std::string human_count(double count);

/// A duration: "0.8s", "42s", "3m05s", "1h02m", "2d03h"; "-" when it is not finite.
std::string human_duration(double seconds);

/// Thousands separated by commas: 4194304 -> "4,194,304".
std::string with_commas(int64_t value);

/// A learning rate or another small number with few characters: 9.85e-5, 0.873, 1.25, 12.3, 1.2e6, NaN, Inf.
std::string short_number(double value);

/// With so many decimals, 1.2345; NaN (never with a sign), Inf, -Inf.
std::string fixed_number(double value, int decimals);

/// With all its digits; NaN, Inf, -Inf.
std::string exact_number(double value);

}  // namespace hone
