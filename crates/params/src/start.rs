//! Start parameters: what Lustre takes as parameters of its kernel modules, given when a process starts.
//!
//! Each layer declares its own in one table beside its configuration, under Lustre's names: how a text becomes a field of
//! the configuration, and how the field is shown. Whoever starts a process puts the tables together, so that a new
//! parameter is one more row in the table of its layer. Nothing here knows any name.

use std::fmt::Display;
use std::ops::RangeInclusive;
use std::str::FromStr;
use std::time::Duration;

/// One start parameter of a layer whose configuration is a `C`.
pub struct StartParam<C> {
    /// The module that has it in Lustre.
    pub module: &'static str,
    /// Its name there.
    pub name: &'static str,
    /// One line of documentation.
    pub about: &'static str,
    /// Its value in a configuration.
    pub show: fn(&C) -> String,
    /// Puts a value into a configuration; says in words what it expects when it refuses one.
    pub set: fn(&mut C, &str) -> Result<(), String>,
}

impl<C> StartParam<C> {
    /// Sets the parameter of this name; `None` if the table has none.
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

/// A whole number within a range.
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

/// A time in whole seconds within a range.
pub fn seconds(text: &str, range: RangeInclusive<u64>) -> Result<Duration, String> {
    number(text, range).map(Duration::from_secs)
}

/// A switch: 0 or 1.
pub fn switch(text: &str) -> Result<bool, String> {
    number(text, 0..=1_u8).map(|n| n == 1)
}

#[cfg(test)]
mod tests {
    use super::{StartParam, number, seconds, switch};
    use std::time::Duration;

    #[test]
    fn a_parameter_is_one_row_of_its_layers_table() {
        let table = [StartParam::<u32> {
            module: "lnet",
            name: "peer_credits",
            about: "messages on their way to one peer",
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
    fn times_and_switches_are_numbers() {
        assert_eq!(seconds("50", 1..=600), Ok(Duration::from_secs(50)));
        assert!(seconds("50s", 1..=600).is_err() && switch("2").is_err());
        assert_eq!(switch("0"), Ok(false));
    }
}
