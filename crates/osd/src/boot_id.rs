//! The machine's boot id. A target compares it with the boot id of its last run. If they are equal,
//! the page cache still has the writes of a killed process.

/// Linux's random boot id; all zeros if unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BootId(pub [u8; 16]);

impl BootId {
    /// The id of the present boot.
    pub fn current() -> BootId {
        let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let digits: String = text.chars().filter(char::is_ascii_hexdigit).collect();
        u128::from_str_radix(&digits, 16).map_or_else(|_| BootId::default(), |id| BootId(id.to_be_bytes()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn boot_id_is_known_and_constant() {
        assert_ne!(BootId::current(), BootId::default());
        assert_eq!(BootId::current(), BootId::current());
    }
}
