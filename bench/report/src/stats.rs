//! Medians, and the fit of a line.

use serde::{Deserialize, Serialize};

/// A figure with its spread: the median, and the tenth and ninetieth percentile of the slices.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Spread {
    /// The middle of the slices.
    pub median: f64,
    /// The tenth percentile.
    pub low: f64,
    /// The ninetieth percentile.
    pub high: f64,
}

impl Spread {
    /// Returns the spread of a counted figure.
    pub fn exact(value: f64) -> Self {
        Self { median: value, low: value, high: value }
    }

    /// Returns the spread of samples in any order; `None` if there are none.
    pub fn of(samples: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut samples: Vec<f64> = samples.into_iter().collect();
        if samples.is_empty() {
            return None;
        }
        samples.sort_by(f64::total_cmp);
        let rank = |share: f64| {
            let place = share * (samples.len() - 1) as f64;
            let (below, above) = (samples[place.floor() as usize], samples[place.ceil() as usize]);
            below + (above - below) * place.fract()
        };
        Some(Self { median: rank(0.5), low: rank(0.1), high: rank(0.9) })
    }
}

/// Returns the middle of values in any order, which are sorted; `None` if there are none.
pub fn median(values: &mut [f64]) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let middle = values.len().checked_sub(1)? as f64 / 2.0;
    Some((values[middle.floor() as usize] + values[middle.ceil() as usize]) / 2.0)
}

/// Rounds samples to five digits, so that reports stay small.
pub fn rounded(samples: impl IntoIterator<Item = f64>) -> Vec<f64> {
    let round = |sample: f64| {
        let digits = 4 - sample.abs().max(f64::MIN_POSITIVE).log10().floor() as i32;
        let text = format!("{sample:.*}", usize::try_from(digits).unwrap_or(0));
        if digits < 0 {
            let unit = 10_f64.powi(-digits);
            return (sample / unit).round() * unit;
        }
        text.parse().unwrap_or(sample)
    };
    samples.into_iter().map(round).collect()
}

/// The line `y = base + slope · x`, fitted by least squares.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Line {
    /// The value at zero.
    pub base: f64,
    /// What one more costs.
    pub slope: f64,
    /// The largest distance of a point from the line.
    pub residual_max: f64,
}

impl Line {
    /// Fits a line through at least two points with different `x`.
    pub fn fit(points: &[(f64, f64)]) -> Option<Self> {
        let count = points.len() as f64;
        let mean_x = points.iter().map(|p| p.0).sum::<f64>() / count;
        let mean_y = points.iter().map(|p| p.1).sum::<f64>() / count;
        let spread: f64 = points.iter().map(|p| (p.0 - mean_x).powi(2)).sum();
        if points.len() < 2 || spread == 0.0 {
            return None;
        }
        let common: f64 = points.iter().map(|p| (p.0 - mean_x) * (p.1 - mean_y)).sum();
        let slope = common / spread;
        let base = mean_y - slope * mean_x;
        let distance = |p: &(f64, f64)| (p.1 - base - slope * p.0).abs();
        let residual_max = points.iter().map(distance).fold(0.0, f64::max);
        Some(Self { base, slope, residual_max })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_lies_between_low_and_high() {
        let spread = Spread::of([5.0, 1.0, 3.0, 2.0, 4.0]).unwrap();
        assert_eq!(spread.median, 3.0);
        assert!((spread.low - 1.4).abs() < 1e-9 && (spread.high - 4.6).abs() < 1e-9);
        assert_eq!(Spread::of([]), None);
    }

    #[test]
    fn samples_keep_five_digits() {
        assert_eq!(rounded([1_234_567.0, 1.234_567, 0.0]), [1_234_600.0, 1.2346, 0.0]);
    }

    #[test]
    fn a_line_is_found_again() {
        let line = Line::fit(&[(1.0, 13.0), (16.0, 58.0), (64.0, 202.0)]).unwrap();
        assert!((line.base - 10.0).abs() < 1e-9 && (line.slope - 3.0).abs() < 1e-9);
        assert!(line.residual_max < 1e-9);
        assert_eq!(Line::fit(&[(1.0, 2.0)]), None);
        assert_eq!(Line::fit(&[(1.0, 2.0), (1.0, 3.0)]), None);
    }
}
