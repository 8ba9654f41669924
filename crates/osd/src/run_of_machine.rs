//! Which run of the machine this is: what a killed process has written stays with the system as long as that runs.

/// A random number that the system has from its start to its end; 0 where it is not known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RunOfMachine(pub [u8; 16]);

impl RunOfMachine {
    /// The present one (Linux's boot id).
    pub fn this() -> RunOfMachine {
        let told = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let digits: String = told.chars().filter(char::is_ascii_hexdigit).collect();
        u128::from_str_radix(&digits, 16)
            .map_or_else(|_| RunOfMachine::default(), |id| RunOfMachine(id.to_be_bytes()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_known_and_stays_the_same() {
        assert_ne!(RunOfMachine::this(), RunOfMachine::default());
        assert_eq!(RunOfMachine::this(), RunOfMachine::this());
    }
}
