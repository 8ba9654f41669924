//! Start parameters: Lustre's kernel module parameters, given when a process starts.
//!
//! Each layer declares its parameters in one table beside its configuration, under Lustre's names.
//! A row converts text to a field of the configuration and back. The command line combines the
//! tables, so a new parameter is one more row in the table of its layer. This module declares no
//! parameters.

use std::fmt::Display;
use std::ops::RangeInclusive;
use std::str::FromStr;
use std::time::Duration;

/// One start parameter of a layer with configuration type `C`.
pub struct StartParam<C> {
    /// The kernel module that has this parameter in Lustre.
    pub module: &'static str,
    /// The parameter's name in Lustre.
    pub name: &'static str,
    /// One line of documentation.
    pub about: &'static str,
    /// Formats the value of a configuration.
    pub show: fn(&C) -> String,
    /// Parses a value and stores it; the error text names the expected values.
    pub set: fn(&mut C, &str) -> Result<(), String>,
}

impl<C> StartParam<C> {
    /// Sets the parameter `name` of `table` in `config`; `None` if the table does not have it.
    pub fn set_in(
        table: &[StartParam<C>],
        config: &mut C,
        name: &str,
        value: &str,
    ) -> Option<Result<(), String>> {
        let param = table.iter().find(|p| p.name == name)?;
        Some((param.set)(config, value))
    }
}

/// Parses a whole number within a range.
///
/// # Errors
///
/// The expected range, as text.
pub fn number<N: FromStr + PartialOrd + Display>(text: &str, range: RangeInclusive<N>) -> Result<N, String> {
    let n = text.trim().parse::<N>().ok().filter(|n| range.contains(n));
    n.ok_or_else(|| {
        format!(
            "expected a whole number from {} to {}",
            range.start(),
            range.end()
        )
    })
}

/// Parses a time in whole seconds within a range.
///
/// # Errors
///
/// The expected range, as text.
pub fn seconds(text: &str, range: RangeInclusive<u64>) -> Result<Duration, String> {
    number(text, range).map(Duration::from_secs)
}

/// Parses a switch: 0 or 1.
///
/// # Errors
///
/// The expected values, as text.
pub fn switch(text: &str) -> Result<bool, String> {
    number(text, 0..=1_u8).map(|n| n == 1)
}

#[cfg(test)]
mod tests {
    use super::{StartParam, number, seconds, switch};
    use std::time::Duration;

    #[test]
    fn set_in_finds_the_row_and_checks_the_value() {
        let table = [StartParam::<u32> {
            module: "lnet",
            name: "peer_credits",
            about: "concurrent sends to one peer",
            show: u32::to_string,
            set: |config, text| number(text, 1..=256).map(|n| *config = n),
        }];
        let mut config = 8;
        assert_eq!(
            StartParam::set_in(&table, &mut config, "peer_credits", "16"),
            Some(Ok(()))
        );
        assert_eq!((table[0].show)(&config), "16");
        let refused = StartParam::set_in(&table, &mut config, "peer_credits", "0");
        assert_eq!(
            refused,
            Some(Err("expected a whole number from 1 to 256".to_owned()))
        );
        assert_eq!(StartParam::set_in(&table, &mut config, "networks", "tcp"), None);
        assert_eq!(config, 16);
    }

    #[test]
    fn times_and_switches_accept_only_numbers() {
        assert_eq!(seconds("50", 1..=600), Ok(Duration::from_secs(50)));
        assert!(seconds("50s", 1..=600).is_err() && switch("2").is_err());
        assert_eq!(switch("0"), Ok(false));
    }
}
