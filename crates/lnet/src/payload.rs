//! A message's payload: one or more reference-counted buffers. Moving, slicing and cloning a
//! payload copy no data.

use bytes::{Bytes, BytesMut};

/// Bytes in one or more pieces.
#[derive(Debug, Clone, Default)]
pub struct Payload(Pieces);

#[derive(Debug, Clone)]
enum Pieces {
    One(Bytes),
    Many(Vec<Bytes>),
}

impl Default for Pieces {
    fn default() -> Self {
        Pieces::One(Bytes::new())
    }
}

impl Payload {
    /// No bytes.
    pub fn new() -> Payload {
        Payload::default()
    }

    /// Total length in bytes.
    pub fn len(&self) -> usize {
        self.pieces().iter().map(Bytes::len).sum()
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The pieces in order.
    pub fn pieces(&self) -> &[Bytes] {
        match &self.0 {
            Pieces::One(bytes) => std::slice::from_ref(bytes),
            Pieces::Many(pieces) => pieces,
        }
    }

    /// Iterates over the pieces.
    pub fn iter(&self) -> impl Iterator<Item = &Bytes> {
        self.pieces().iter()
    }

    /// The pieces as a vector; an empty vector if the only piece is empty.
    pub fn into_pieces(self) -> Vec<Bytes> {
        match self.0 {
            Pieces::One(bytes) if bytes.is_empty() => Vec::new(),
            Pieces::One(bytes) => vec![bytes],
            Pieces::Many(pieces) => pieces,
        }
    }

    /// All bytes in one piece; copies only if there are several pieces.
    pub fn into_bytes(self) -> Bytes {
        match self.0 {
            Pieces::One(bytes) => bytes,
            Pieces::Many(mut pieces) if pieces.len() == 1 => pieces.swap_remove(0),
            Pieces::Many(pieces) => {
                let mut all = BytesMut::with_capacity(pieces.iter().map(Bytes::len).sum());
                pieces.iter().for_each(|piece| all.extend_from_slice(piece));
                all.freeze()
            }
        }
    }

    /// At most `len` bytes from `offset`.
    pub fn slice(&self, offset: usize, len: usize) -> Payload {
        if offset == 0 && len >= self.len() {
            return self.clone();
        }
        let (mut skip, mut left) = (offset, len);
        let mut out = Vec::new();
        for piece in self.iter() {
            let from = skip.min(piece.len());
            let to = from + left.min(piece.len() - from);
            skip -= from;
            left -= to - from;
            if from < to {
                out.push(piece.slice(from..to));
            }
        }
        Payload::from(out)
    }
}

impl From<Bytes> for Payload {
    fn from(bytes: Bytes) -> Payload {
        Payload(Pieces::One(bytes))
    }
}

impl From<Vec<Bytes>> for Payload {
    fn from(mut pieces: Vec<Bytes>) -> Payload {
        match pieces.len() {
            0 => Payload::new(),
            1 => Payload(Pieces::One(pieces.swap_remove(0))),
            _ => Payload(Pieces::Many(pieces)),
        }
    }
}

impl From<Vec<u8>> for Payload {
    fn from(bytes: Vec<u8>) -> Payload {
        Payload::from(Bytes::from(bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::Payload;
    use bytes::Bytes;

    fn pieces(all: &[&'static str]) -> Payload {
        all.iter()
            .map(|s| Bytes::from_static(s.as_bytes()))
            .collect::<Vec<_>>()
            .into()
    }

    #[test]
    fn pieces_are_joined_in_order() {
        let payload = pieces(&["ab", "", "cde"]);
        assert_eq!(payload.len(), 5);
        assert_eq!(payload.into_bytes(), "abcde");
        assert!(Payload::new().into_pieces().is_empty());
    }

    #[test]
    fn a_slice_may_begin_and_end_inside_pieces() {
        let payload = pieces(&["abc", "def", "ghi"]);
        assert_eq!(payload.slice(2, 5).into_bytes(), "cdefg");
        assert_eq!(payload.slice(8, 100).into_bytes(), "i");
        assert!(payload.slice(9, 1).is_empty());
        assert!(payload.slice(100, 1).is_empty());
    }
}
