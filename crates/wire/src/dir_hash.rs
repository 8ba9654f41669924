//! The hash functions that distribute the names of a striped directory over its stripes.
//!
//! Clients and servers must agree on the stripe of each name, so this module also repeats the odd
//! cases of Lustre's functions. The names of temporary files and backups have the stripe of the
//! file that they will replace or have replaced; only [`LMV_HASH_TYPE_CRUSH`] and
//! [`LMV_HASH_TYPE_CRUSH2`] do this.

use crate::consts::lmv::{
    LMV_CRUSH_PG_COUNT, LMV_HASH_TYPE_ALL_CHARS, LMV_HASH_TYPE_CRUSH, LMV_HASH_TYPE_CRUSH2,
    LMV_HASH_TYPE_FNV_1A_64, LMV_HASH_TYPE_MASK, LUSTRE_FNV_1A_64_OFFSET_BIAS, LUSTRE_FNV_1A_64_PRIME,
};

/// The names of the hash types, as Lustre's tools write them.
pub const HASH_NAMES: [(u32, &str); 4] = [
    (LMV_HASH_TYPE_ALL_CHARS, "all_char"),
    (LMV_HASH_TYPE_FNV_1A_64, "fnv_1a_64"),
    (LMV_HASH_TYPE_CRUSH, "crush"),
    (LMV_HASH_TYPE_CRUSH2, "crush2"),
];

/// Length of the random suffix of a temporary name `.NAME.XXXXXX`, as rsync makes it.
const HIDDEN_SUFFIX_LEN: usize = 6;
/// Length of the random suffix of a temporary name `NAME.XXXXXXXX`.
const PLAIN_SUFFIX_LEN: usize = 8;

/// The stripe of a name in a directory with `count` stripes; `hash_type` may have flags. `None`:
/// the type is unknown. A directory with one stripe has all names there, whatever its type.
pub fn stripe_of(hash_type: u32, count: u32, name: &[u8]) -> Option<u32> {
    if count <= 1 {
        return Some(0);
    }
    match hash_type & LMV_HASH_TYPE_MASK {
        LMV_HASH_TYPE_ALL_CHARS => {
            let sum = name.iter().fold(0_u32, |sum, b| sum.wrapping_add(u32::from(*b)));
            Some(sum % count)
        }
        LMV_HASH_TYPE_FNV_1A_64 => Some((fnv_1a_64(name) % u64::from(count)) as u32),
        LMV_HASH_TYPE_CRUSH => Some(crush(count, lasting_name(name, Suffixes::Crush))),
        LMV_HASH_TYPE_CRUSH2 => Some(crush(count, lasting_name(name, Suffixes::Crush2))),
        _ => None,
    }
}

fn fnv_1a_64(name: &[u8]) -> u64 {
    name.iter().fold(LUSTRE_FNV_1A_64_OFFSET_BIAS, |hash, b| {
        (hash ^ u64::from(*b)).wrapping_mul(LUSTRE_FNV_1A_64_PRIME)
    })
}

/// The stripe with the longest straw for the name's placement group; the first of several.
fn crush(count: u32, name: &[u8]) -> u32 {
    let group = (fnv_1a_64(name) % u64::from(LMV_CRUSH_PG_COUNT)) as u32;
    let (mut longest, mut stripe) = (0, 0);
    for i in 0..count {
        let straw = straw(group, i);
        if straw > longest {
            (longest, stripe) = (straw, i);
        }
    }
    stripe
}

/// Robert Jenkins' 32-bit hash of two numbers, as CRUSH uses it.
fn straw(mut a: u32, mut b: u32) -> u32 {
    let (mut x, mut y) = (231_232, 1232);
    let mut hash = 1_315_423_911 ^ a ^ b;
    mix(&mut a, &mut b, &mut hash);
    mix(&mut x, &mut a, &mut hash);
    mix(&mut b, &mut y, &mut hash);
    hash
}

/// One round of Robert Jenkins' mixing function.
fn mix(a: &mut u32, b: &mut u32, c: &mut u32) {
    for (right, left, last) in [(13, 8, 13), (12, 16, 5), (3, 10, 15)] {
        *a = a.wrapping_sub(*b).wrapping_sub(*c) ^ (*c >> right);
        *b = b.wrapping_sub(*c).wrapping_sub(*a) ^ (*a << left);
        *c = c.wrapping_sub(*a).wrapping_sub(*b) ^ (*b >> last);
    }
}

/// Which suffixes count as random. The rule of `Crush` has an error that is part of the protocol:
/// it also accepts suffixes of digits and other characters.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Suffixes {
    Crush,
    Crush2,
}

/// The part of a temporary or backup file's name that the lasting file has; else the whole name.
fn lasting_name(name: &[u8], suffixes: Suffixes) -> &[u8] {
    let hidden = name
        .strip_prefix(b".")
        .and_then(|rest| without_suffix(rest, HIDDEN_SUFFIX_LEN, suffixes));
    hidden
        .or_else(|| without_suffix(name, PLAIN_SUFFIX_LEN, suffixes))
        .unwrap_or_else(|| without_backup_mark(name))
}

/// The name without a dot and a random suffix of `len` bytes; `None`: it has no such suffix.
fn without_suffix(name: &[u8], len: usize, suffixes: Suffixes) -> Option<&[u8]> {
    let (head, suffix) = name.split_at_checked(name.len().checked_sub(len)?)?;
    let head = head.strip_suffix(b".").filter(|head| !head.is_empty())?;
    let count = |is: fn(u8) -> bool| suffix.iter().filter(|b| is(**b)).count();
    let (lower, upper, digits) = (count(is_lower), count(is_upper), count(is_digit));
    let begins_with_digit = suffix.first().is_some_and(|b| is_digit(*b));
    let is_random = match suffixes {
        _ if lower == len || upper == len => false,
        Suffixes::Crush => digits < len - 1 || begins_with_digit,
        Suffixes::Crush2 => lower + upper + digits == len && (digits < len - 1 || !begins_with_digit),
    };
    is_random.then_some(head)
}

/// The name without the mark of a backup: `~`, `.bak`, `.sav` or `.orig`.
fn without_backup_mark(name: &[u8]) -> &[u8] {
    if let [head @ .., before, b'~'] = name
        && *before != b'.'
    {
        return name.get(..=head.len()).unwrap_or(name);
    }
    let mark_len = |marks: &[&[u8]]| {
        let has = |mark: &&&[u8]| {
            let from = name.len().checked_sub(mark.len()).filter(|from| *from > 0);
            from.and_then(|from| name.get(from..))
                .is_some_and(|end| end.eq_ignore_ascii_case(mark))
        };
        marks.iter().find(has).map(|mark| mark.len())
    };
    mark_len(&[b".bak", b".sav", b".orig"])
        .and_then(|len| name.get(..name.len().checked_sub(len)?))
        .unwrap_or(name)
}

/// Lustre's kernels classify bytes as characters of Latin-1, whatever the names' encoding.
fn is_lower(b: u8) -> bool {
    b.is_ascii_lowercase() || (b >= 0xdf && b != 0xf7)
}

fn is_upper(b: u8) -> bool {
    b.is_ascii_uppercase() || ((0xc0..=0xde).contains(&b) && b != 0xd7)
}

fn is_digit(b: u8) -> bool {
    b.is_ascii_digit()
}

#[cfg(test)]
mod tests {
    use super::{HASH_NAMES, stripe_of};
    use crate::consts::lmv::{LMV_HASH_FLAG_MIGRATION, LMV_HASH_TYPE_CRUSH2, LMV_HASH_TYPE_MAX};

    /// Names with their stripes of 5 and of 61, for the hash types in the order of [`HASH_NAMES`].
    /// Lustre's functions (version 2.17.57) computed the numbers.
    const STRIPES: &[(&str, [u32; 4], [u32; 4])] = &[
        ("s1", [4, 4, 2, 2], [42, 44, 40, 40]),
        ("s2", [0, 1, 0, 0], [43, 42, 7, 7]),
        ("a", [2, 1, 2, 2], [36, 36, 21, 21]),
        ("dir1", [3, 2, 4, 4], [2, 0, 8, 8]),
        ("file.0001", [0, 4, 1, 1], [45, 39, 42, 42]),
        (".f.aB3dE9", [4, 0, 1, 1], [24, 5, 29, 29]),
        (".f.abcdef", [1, 4, 0, 0], [59, 60, 49, 49]),
        (".f.ABCDEF", [4, 1, 3, 3], [50, 30, 56, 56]),
        (".f.123456", [3, 3, 1, 2], [15, 52, 29, 52]),
        (".f.12345x", [4, 3, 1, 3], [20, 46, 29, 38]),
        (".f.x12345", [4, 1, 4, 1], [20, 54, 19, 29]),
        ("data.Ab12Cd34", [3, 3, 0, 0], [12, 49, 52, 52]),
        ("data.1234567x", [0, 3, 0, 4], [25, 40, 52, 4]),
        ("data.x1234567", [0, 4, 4, 0], [25, 17, 49, 52]),
        ("data.12345678", [1, 2, 0, 3], [22, 42, 52, 14]),
        ("out.6334.log", [1, 2, 0, 4], [51, 55, 50, 39]),
        ("x.mdtest.12", [3, 3, 2, 2], [53, 5, 48, 48]),
        ("a~", [3, 1, 2, 2], [40, 45, 21, 21]),
        (".~", [2, 4, 0, 0], [50, 48, 24, 24]),
        ("x.~", [2, 4, 1, 1], [48, 39, 13, 13]),
        ("notes.bak", [1, 0, 3, 3], [47, 23, 22, 22]),
        ("notes.SAV", [3, 1, 3, 3], [40, 33, 22, 22]),
        (".bak", [3, 2, 0, 0], [43, 13, 17, 17]),
        ("x.orig", [4, 0, 4, 4], [50, 44, 59, 59]),
        (".orig", [4, 1, 2, 2], [52, 19, 52, 52]),
        ("x.ORIG", [1, 0, 4, 4], [44, 44, 59, 59]),
        ("grün", [0, 3, 1, 1], [39, 14, 17, 17]),
        ("x.abÄbcd", [0, 4, 2, 2], [9, 53, 18, 18]),
    ];

    #[test]
    fn each_name_has_the_stripe_that_lustre_computes() {
        for (name, of_5, of_61) in STRIPES {
            for (count, expected) in [(5, of_5), (61, of_61)] {
                let stripes = HASH_NAMES.map(|(hash, _)| stripe_of(hash, count, name.as_bytes()));
                assert_eq!(stripes, expected.map(Some), "{name} of {count}");
            }
        }
    }

    #[test]
    fn flags_do_not_change_the_stripe_and_unknown_types_have_none() {
        let flagged = LMV_HASH_TYPE_CRUSH2 | LMV_HASH_FLAG_MIGRATION;
        assert_eq!(stripe_of(flagged, 5, b"dir1"), Some(4));
        assert_eq!(stripe_of(0, 5, b"a"), None);
        assert_eq!(stripe_of(LMV_HASH_TYPE_MAX, 5, b"a"), None);
        assert_eq!(stripe_of(LMV_HASH_TYPE_MAX, 1, b"a"), Some(0));
    }

    #[test]
    fn short_names_have_a_stripe() {
        for len in 0..12 {
            for byte in [b'.', b'~', b'a', 0xff] {
                for (hash, _) in HASH_NAMES {
                    assert!(stripe_of(hash, 7, &vec![byte; len]).is_some_and(|stripe| stripe < 7));
                }
            }
        }
    }
}
