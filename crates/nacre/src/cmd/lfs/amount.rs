//! Numbers on the command line with a sign and a unit: `[+-]N[kMGTPE]`.

use anyhow::{Context, Result};

/// A number on the command line: `[+-]N` and the suffix of a unit.
pub(super) struct Amount {
    pub sign: Option<Sign>,
    /// N times the unit.
    pub limit: u64,
    pub unit: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sign {
    Plus,
    Minus,
}

impl Amount {
    /// Parses a number. `unit_of` returns the size of the unit with this suffix, or `None` for an
    /// unknown unit. The suffix is empty if the number has no unit.
    ///
    /// # Errors
    ///
    /// An unknown unit, or a value that is not a number below 2^64.
    pub(super) fn parse(text: &str, unit_of: impl Fn(&str) -> Option<u64>) -> Result<Amount> {
        let (sign, digits) = match text.split_at_checked(1) {
            Some(("+", digits)) => (Some(Sign::Plus), digits),
            Some(("-", digits)) => (Some(Sign::Minus), digits),
            _ => (None, text),
        };
        let split = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
        let (number, suffix) = digits.split_at(split);
        let unit = unit_of(suffix).with_context(|| format!("'{suffix}' is not a unit"))?;
        let limit = number.parse::<u64>().ok().and_then(|n| n.checked_mul(unit));
        let limit = limit.with_context(|| format!("'{text}' is not a number"))?;
        Ok(Amount { sign, limit, unit })
    }

    /// The sign, limit and unit as signed numbers.
    ///
    /// # Errors
    ///
    /// A number (`text`) that is not below 2^63.
    pub(super) fn signed(self, text: &str) -> Result<(Option<Sign>, i64, i64)> {
        let signed = |n: u64| i64::try_from(n).with_context(|| format!("'{text}' is not a number"));
        Ok((self.sign, signed(self.limit)?, signed(self.unit)?))
    }
}

/// The binary unit with this suffix: `k` for 2^10 to `E` for 2^60.
pub(super) fn binary_unit(suffix: &str) -> Option<u64> {
    Some(match suffix {
        "k" | "K" => 1 << 10,
        "m" | "M" => 1 << 20,
        "g" | "G" => 1 << 30,
        "t" | "T" => 1 << 40,
        "p" | "P" => 1 << 50,
        "e" | "E" => 1 << 60,
        _ => return None,
    })
}
