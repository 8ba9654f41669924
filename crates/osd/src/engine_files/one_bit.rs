//! Corrects one flipped bit with the help of a checksum.

/// Maximum number of bytes in which a bit is searched. The search computes one checksum for each
/// bit; this many bytes take a few seconds.
const BYTES_MAX: usize = 64 << 10;

/// Flips the one bit of `bytes` that makes them intact. Returns whether there is one; otherwise the
/// bytes are as before.
pub(super) fn correct(bytes: &mut [u8], is_intact: impl Fn(&[u8]) -> bool) -> bool {
    if bytes.len() > BYTES_MAX {
        return false;
    }
    for bit in 0..bytes.len() * 8 {
        bytes[bit / 8] ^= 1 << (bit % 8);
        if is_intact(bytes) {
            return true;
        }
        bytes[bit / 8] ^= 1 << (bit % 8);
    }
    false
}

#[cfg(test)]
mod tests {
    use super::correct;
    use xxhash_rust::xxh3::xxh3_64;

    #[test]
    fn each_flipped_bit_is_corrected_and_two_are_not() {
        let good = *b"the records of a block";
        let sum = xxh3_64(&good);
        for bit in 0..good.len() * 8 {
            let mut bytes = good;
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(correct(&mut bytes, |bytes| xxh3_64(bytes) == sum));
            assert_eq!(bytes, good);
        }
        let mut bytes = *b"the records of a rlock";
        bytes[0] ^= 1;
        let before = bytes;
        assert!(!correct(&mut bytes, |bytes| xxh3_64(bytes) == sum));
        assert_eq!(bytes, before);
    }
}
