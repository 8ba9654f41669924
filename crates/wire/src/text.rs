//! Text in fields of fixed length: the bytes up to the first NUL. [`Text::new`] and
//! [`Text::truncated`] fill the rest of the field with zeros.

use crate::codec::{Reader, Result, Writer};
use crate::layout::{Shape, WireField};
use std::fmt;

/// `char[N]`: text, with a final NUL if it is shorter than `N`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Text<const N: usize>(pub [u8; N]);

impl<const N: usize> Text<N> {
    /// A field with the text `s`; `None` if `s` contains a NUL or does not leave a byte for one.
    pub fn new(s: &str) -> Option<Self> {
        let mut out = [0; N];
        let start = out
            .get_mut(..s.len())
            .filter(|_| s.len() < N && !s.contains('\0'))?;
        start.copy_from_slice(s.as_bytes());
        Some(Text(out))
    }

    /// A field with the text `s`, truncated at its first NUL, and at a character boundary if it
    /// does not leave a byte for the NUL.
    pub fn truncated(s: &str) -> Self {
        let s = s.split('\0').next().unwrap_or("");
        let mut end = s.len().min(N.saturating_sub(1));
        while !s.is_char_boundary(end) {
            end -= 1;
        }
        let mut out = [0; N];
        out[..end].copy_from_slice(&s.as_bytes()[..end]);
        Text(out)
    }

    /// The bytes before the first NUL.
    pub fn bytes(&self) -> &[u8] {
        let end = self.0.iter().position(|&b| b == 0).unwrap_or(N);
        &self.0[..end]
    }

    /// The text before the first NUL, up to the first invalid UTF-8.
    pub fn as_str(&self) -> &str {
        let bytes = self.bytes();
        match std::str::from_utf8(bytes) {
            Ok(s) => s,
            Err(e) => std::str::from_utf8(&bytes[..e.valid_up_to()]).unwrap_or(""),
        }
    }

    /// Whether the field begins with a NUL.
    pub fn is_empty(&self) -> bool {
        self.bytes().is_empty()
    }
}

impl<const N: usize> Default for Text<N> {
    fn default() -> Self {
        Text([0; N])
    }
}

impl<const N: usize> fmt::Display for Text<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&String::from_utf8_lossy(self.bytes()))
    }
}

impl<const N: usize> fmt::Debug for Text<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", String::from_utf8_lossy(self.bytes()))
    }
}

impl<const N: usize> WireField for Text<N> {
    const BYTES: usize = N;
    const ZERO: Self = Text([0; N]);
    const SHAPE: Shape = Shape::Text;
    fn read_field(r: &mut Reader<'_>) -> Result<Self> {
        r.array().map(Text)
    }
    fn write_field(&self, w: &mut Writer) {
        w.put(&self.0);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::Text;

    #[test]
    fn text_ends_at_the_first_nul() {
        let t = Text::<8>::new("lustre").unwrap();
        assert_eq!(t.as_str(), "lustre");
        assert_eq!(&t.0, b"lustre\0\0");
    }

    #[test]
    fn text_that_is_too_long_is_refused_or_truncated() {
        assert_eq!(Text::<4>::new("abcd"), None);
        assert_eq!(Text::<4>::truncated("abcd").as_str(), "abc");
        assert_eq!(Text::<4>::truncated("ab\u{e9}").as_str(), "ab");
    }
}
