//! Names of protocol constants, without the common prefix of their family.

use std::sync::LazyLock;

/// Name and value of each constant of the protocol.
static CONSTANTS: LazyLock<Vec<(&'static str, u64)>> = LazyLock::new(|| wire::consts::all().collect());

/// The names of the bits of `value` in ascending order, then the bits without a name in hex:
/// `READ|CREAT|0x8000`.
pub(super) fn flags(prefixes: &[&str], value: u64) -> String {
    let mut unnamed_bits = value;
    let mut set_bits = Vec::new();
    for prefix in prefixes {
        for (name, bit) in CONSTANTS
            .iter()
            .filter(|(n, v)| v.is_power_of_two() && n.starts_with(prefix))
        {
            if unnamed_bits & bit != 0 {
                unnamed_bits &= !bit;
                set_bits.push((*bit, name[prefix.len()..].to_owned()));
            }
        }
    }
    set_bits.sort();
    let mut names: Vec<String> = set_bits.into_iter().map(|(_, name)| name).collect();
    if unnamed_bits != 0 {
        names.push(format!("{unnamed_bits:#x}"));
    }
    names.join("|")
}

/// The name of a value in a family of constants.
pub(super) fn value_name(prefix: &str, value: u64) -> Option<String> {
    let found = CONSTANTS
        .iter()
        .find(|(n, v)| *v == value && n.starts_with(prefix));
    found.map(|(name, _)| name[prefix.len()..].to_owned())
}

/// The name of a value in a family, or the number.
pub(super) fn value_or_number(prefix: &str, value: u64) -> String {
    value_name(prefix, value).unwrap_or_else(|| value.to_string())
}

/// The abbreviation of a lock mode.
pub(super) fn lock_mode(mode: u32) -> &'static str {
    match mode {
        wire::LCK_EX => "EX",
        wire::LCK_PW => "PW",
        wire::LCK_PR => "PR",
        wire::LCK_CW => "CW",
        wire::LCK_CR => "CR",
        wire::LCK_NL => "NL",
        wire::LCK_GROUP => "GROUP",
        wire::LCK_COS => "COS",
        wire::LCK_TXN => "TXN",
        0 => "-",
        _ => "?",
    }
}

#[cfg(test)]
mod tests {
    use super::{flags, value_name};

    #[test]
    fn flags_print_names_and_unknown_bits_in_hex() {
        assert_eq!(flags(&["MDS_FMODE_", "MDS_OPEN_"], 0x43), "READ|WRITE|CREAT");
        assert_eq!(
            flags(&["MDS_INODELOCK_"], 0x8000_0003),
            "LOOKUP|UPDATE|0x80000000"
        );
        assert_eq!(flags(&["MDS_INODELOCK_"], 0), "");
    }

    #[test]
    fn values_have_names() {
        assert_eq!(value_name("REINT_", 2).as_deref(), Some("CREATE"));
    }
}
