// How far the noise of a run widens the bounds of a comparison with it.
#pragma once

namespace hone {

/// Both sides may deviate by the noise, in opposite directions.
constexpr double kNoiseFactor = 2;

/// The largest noise for which a bound of kNoiseFactor times the noise is useful: a run that changes no weights has an
/// error of 1 in their change, and the losses of a case change by a few hundredths in a run. A case with more is
/// refused.
constexpr double kMostNumberNoise = 0.02;
constexpr double kMostChangeNoise = 0.2;

}  // namespace hone
