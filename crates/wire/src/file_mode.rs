//! The text form of a file's type and permissions.

/// The type and permissions of a file in the format of `ls`: `drwxr-xr-x`.
pub fn file_mode(mode: u32) -> String {
    let kind = match mode & 0o170_000 {
        0o040_000 => 'd',
        0o100_000 => '-',
        0o120_000 => 'l',
        0o020_000 => 'c',
        0o060_000 => 'b',
        0o010_000 => 'p',
        0o140_000 => 's',
        _ => '?',
    };
    let bits = |shift: u32, special: u32, special_char: char| {
        let bit = |n: u32, c: char| if mode >> (shift + n) & 1 == 1 { c } else { '-' };
        let execute = match (mode & special != 0, bit(0, 'x')) {
            (true, 'x') => special_char,
            (true, _) => special_char.to_ascii_uppercase(),
            (false, c) => c,
        };
        format!("{}{}{execute}", bit(2, 'r'), bit(1, 'w'))
    };
    format!(
        "{kind}{}{}{}",
        bits(6, 0o4000, 's'),
        bits(3, 0o2000, 's'),
        bits(0, 0o1000, 't')
    )
}

#[cfg(test)]
mod tests {
    use super::file_mode;

    #[test]
    fn file_modes_have_the_form_of_ls() {
        assert_eq!(file_mode(0o40755), "drwxr-xr-x");
        assert_eq!(file_mode(0o100_644), "-rw-r--r--");
        assert_eq!(file_mode(0o041_777), "drwxrwxrwt");
        assert_eq!(file_mode(0o106_750), "-rwsr-s---");
        assert_eq!(file_mode(0o101_640 | 0o4000), "-rwSr----T");
    }
}
