//! RPC messages: a header, then buffers at 8-byte boundaries (`lustre_msg_v2`).
//!
//! Parsing slices the received bytes and copies nothing. Buffer 0 of an RPC is the `ptlrpc_body`;
//! the RPC's format defines the other buffers. The messages in a batch have no `ptlrpc_body`. A
//! missing buffer reads as empty.

use crate::codec::{Reader, Result, WireError, Writer, round_up8};
use crate::consts::ptlrpc::{
    LUSTRE_MSG_MAGIC_V2, LUSTRE_MSG_MAGIC_V2_SWABBED, MSGHDR_AT_SUPPORT, PTLRPC_MAX_BUFLEN,
};
use crate::format::bufs::PTLRPC_BODY;
use crate::ids::before_nul;
use crate::layout::WireStruct;
use crate::ptlrpc::{LustreMsgV2, PtlrpcBody, PtlrpcBodyV2};
use bytes::Bytes;

/// Maximum number of buffers in a message.
pub const MAX_BUFFERS: usize = 32;

/// Offset of a final reply in the client's buffer, in bytes: behind the space for an early reply.
pub const EARLY_REPLY_SIZE: usize = LustreMsgV2::size_of_header(1) + PtlrpcBody::SIZE;

impl LustreMsgV2 {
    /// Size of the header of a message with `n` buffers, in bytes.
    pub const fn size_of_header(n: usize) -> usize {
        round_up8(Self::SIZE + 4 * n)
    }
}

/// A message: the header's fields and the buffers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Message {
    /// `lm_secflvr`: the security flavor; bits 24 to 31 are the sender's role
    /// (`LUSTRE_SP_*`).
    pub secflvr: u32,
    /// `lm_repsize`: bytes that the client reserves for the reply; 0 if it does not announce them.
    pub repsize: u32,
    /// `lm_cksum`: checksum of an early reply's body.
    pub cksum: u32,
    /// `lm_flags`: `MSGHDR_*`.
    pub flags: u32,
    /// `lm_opc`: normally 0 in an RPC; in a batch the operation of a request or the status of a
    /// reply.
    pub opc: u32,
    /// The buffers; in an RPC the first is the body.
    pub bufs: Vec<Bytes>,
}

impl Message {
    /// A message of `body` and more buffers, with `MSGHDR_AT_SUPPORT`.
    pub fn new(body: &PtlrpcBody, bufs: impl IntoIterator<Item = Bytes>) -> Message {
        Message {
            flags: MSGHDR_AT_SUPPORT,
            bufs: std::iter::once(body.to_bytes()).chain(bufs).collect(),
            ..Message::default()
        }
    }

    /// Parses a message. Ignores bytes after it.
    ///
    /// # Errors
    ///
    /// A wrong magic, no buffers, too many or too long buffers, or a header or buffers beyond the
    /// end of `bytes`.
    pub fn parse(bytes: &Bytes) -> Result<Message> {
        let header = LustreMsgV2::from_bytes(bytes)?;
        if header.lm_magic != LUSTRE_MSG_MAGIC_V2 {
            let what = match header.lm_magic {
                LUSTRE_MSG_MAGIC_V2_SWABBED => "lustre_msg_v2 of a big-endian peer",
                _ => "lustre_msg_v2",
            };
            let (expected, found) = (LUSTRE_MSG_MAGIC_V2.into(), header.lm_magic.into());
            return Err(WireError::Magic {
                what,
                expected,
                found,
            });
        }
        let count = header.lm_bufcount as usize;
        if count == 0 || count > MAX_BUFFERS {
            let found = header.lm_bufcount.into();
            return Err(WireError::Value {
                what: "lm_bufcount",
                expected: "1 to 32",
                found,
            });
        }
        let short = |expected| WireError::Short {
            what: "lustre_msg_v2",
            expected,
            found: bytes.len(),
        };
        let mut offset = LustreMsgV2::size_of_header(count);
        let lens = bytes.get(LustreMsgV2::SIZE..offset).ok_or(short(offset))?;
        let mut lens = Reader::new("lm_buflens", lens);
        let mut bufs = Vec::with_capacity(count);
        for _ in 0..count {
            let len = lens.u32()? as usize;
            let limit = PTLRPC_MAX_BUFLEN as usize;
            if len > limit {
                return Err(WireError::TooLong {
                    what: "lm_buflens",
                    limit,
                    found: len,
                });
            }
            if offset + len > bytes.len() {
                return Err(short(offset + len));
            }
            bufs.push(bytes.slice(offset..offset + len));
            offset += round_up8(len);
        }
        Ok(Message {
            secflvr: header.lm_secflvr,
            repsize: header.lm_repsize,
            cksum: header.lm_cksum,
            flags: header.lm_flags,
            opc: header.lm_opc,
            bufs,
        })
    }

    /// The message in wire format.
    pub fn build(&self) -> Bytes {
        let mut w = self.header(self.bufs.iter().map(Bytes::len));
        put_buffers(&mut w, &self.bufs);
        w.finish()
    }

    /// The message in wire format, with `body` and `bufs` in the place of [`Self::bufs`]. Copies
    /// the data only once.
    pub fn build_with(&self, body: &PtlrpcBody, bufs: &[Bytes]) -> Bytes {
        let lens = bufs.iter().map(Bytes::len);
        let mut w = self.header(std::iter::once(PtlrpcBody::SIZE).chain(lens));
        body.write(&mut w);
        put_buffers(&mut w, bufs);
        w.finish()
    }

    /// Writes the header for buffers of these lengths, and reserves capacity for them.
    fn header(&self, lens: impl Iterator<Item = usize> + Clone) -> Writer {
        let (count, bytes) = lens
            .clone()
            .fold((0, 0), |(count, bytes), len| (count + 1, bytes + round_up8(len)));
        let mut w = Writer::with_capacity(LustreMsgV2::size_of_header(count) + bytes);
        LustreMsgV2 {
            lm_bufcount: count as u32,
            lm_secflvr: self.secflvr,
            lm_magic: LUSTRE_MSG_MAGIC_V2,
            lm_repsize: self.repsize,
            lm_cksum: self.cksum,
            lm_flags: self.flags,
            lm_opc: self.opc,
            lm_padding_3: 0,
        }
        .write(&mut w);
        lens.for_each(|len| w.u32(len as u32));
        w.align8();
        w
    }

    /// Size of the built message, in bytes.
    pub fn len(&self) -> usize {
        self.bufs
            .iter()
            .fold(LustreMsgV2::size_of_header(self.bufs.len()), |n, b| {
                n + round_up8(b.len())
            })
    }

    /// Whether the message has no buffers, not even a body.
    pub fn is_empty(&self) -> bool {
        self.bufs.is_empty()
    }

    /// The body. If an old peer sent the shorter body (152 bytes), the missing fields are zero.
    ///
    /// # Errors
    ///
    /// The body is shorter than 152 bytes.
    pub fn body(&self) -> Result<PtlrpcBody> {
        let buf = self.buf(PTLRPC_BODY);
        if buf.len() >= PtlrpcBody::SIZE {
            return PtlrpcBody::from_bytes(buf);
        }
        if buf.len() < PtlrpcBodyV2::SIZE {
            let (expected, found) = (PtlrpcBodyV2::SIZE, buf.len());
            return Err(WireError::Short {
                what: PtlrpcBody::NAME,
                expected,
                found,
            });
        }
        let mut whole = [0; PtlrpcBody::SIZE];
        whole[..buf.len()].copy_from_slice(buf);
        PtlrpcBody::from_bytes(&whole)
    }

    /// Replaces the body.
    pub fn set_body(&mut self, body: &PtlrpcBody) {
        match self.bufs.first_mut() {
            Some(first) => *first = body.to_bytes(),
            None => self.bufs.push(body.to_bytes()),
        }
    }

    /// Buffer `i`; empty if the message lacks it.
    pub fn buf(&self, i: usize) -> &[u8] {
        self.bufs.get(i).map_or(&[], |b| &b[..])
    }

    /// Buffer `i` as shared bytes; empty if the message lacks it.
    pub fn bytes(&self, i: usize) -> Bytes {
        self.bufs.get(i).cloned().unwrap_or_default()
    }

    /// The structure at the start of buffer `i`.
    ///
    /// # Errors
    ///
    /// The buffer is shorter than the structure.
    pub fn get<T: WireStruct>(&self, i: usize) -> Result<T> {
        T::from_bytes(self.buf(i))
    }

    /// The string in buffer `i`: the bytes before the NUL. Names of files need not be UTF-8.
    pub fn name(&self, i: usize) -> &[u8] {
        before_nul(self.buf(i))
    }

    /// The string in buffer `i` as text.
    ///
    /// # Errors
    ///
    /// The bytes are not UTF-8.
    pub fn str(&self, i: usize) -> Result<&str> {
        let name = self.name(i);
        std::str::from_utf8(name).map_err(|_| WireError::Text {
            what: "string buffer",
            expected: "UTF-8",
            text: String::from_utf8_lossy(name).chars().take(80).collect(),
        })
    }
}

fn put_buffers(w: &mut Writer, bufs: &[Bytes]) {
    for buf in bufs {
        w.put(buf);
        w.align8();
    }
}

/// The checksum of an early reply: CRC-32 of its body, without the final inversion.
pub fn early_reply_cksum(body: &[u8]) -> u32 {
    body.iter().fold(u32::MAX, |crc, &byte| {
        (0..8).fold(crc ^ u32::from(byte), |c, _| {
            if c & 1 == 1 { c >> 1 ^ 0xedb8_8320 } else { c >> 1 }
        })
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::{EARLY_REPLY_SIZE, Message, early_reply_cksum};
    use crate::{MdtBody, PtlrpcBody, WireError, WireStruct};
    use bytes::Bytes;
    use proptest::prelude::{any, prop, proptest};

    fn sample() -> Message {
        let body = PtlrpcBody {
            pb_opc: 33,
            pb_transno: 7,
            ..Default::default()
        };
        Message::new(
            &body,
            [
                MdtBody::default().to_bytes(),
                Bytes::new(),
                Bytes::from_static(b"name\0"),
            ],
        )
    }

    #[test]
    fn a_message_is_rebuilt_byte_for_byte() {
        let built = sample().build();
        assert_eq!(built.len(), 48 + 184 + 216 + 8);
        let parsed = Message::parse(&built).unwrap();
        assert_eq!(parsed, sample());
        assert_eq!(parsed.build(), built);
        assert_eq!(parsed.body().unwrap().pb_transno, 7);
        assert_eq!(parsed.str(3).unwrap(), "name");
        assert_eq!(parsed.buf(9), b"");
        let (body, head) = (
            parsed.body().unwrap(),
            Message {
                bufs: Vec::new(),
                ..parsed.clone()
            },
        );
        assert_eq!(head.build_with(&body, &parsed.bufs[1..]), built);
    }

    #[test]
    fn a_truncated_message_is_refused() {
        let built = sample().build();
        for end in 0..built.len() - 8 {
            assert!(Message::parse(&built.slice(..end)).is_err(), "{end}");
        }
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..300), count in 0u8..40) {
            let mut bytes = bytes;
            if bytes.len() > 12 {
                bytes[..4].copy_from_slice(&[count, 0, 0, 0]);
                bytes[8..12].copy_from_slice(&crate::LUSTRE_MSG_MAGIC_V2.to_le_bytes());
            }
            if let Ok(msg) = Message::parse(&Bytes::from(bytes)) {
                let _ = msg.body();
                assert_eq!(Message::parse(&msg.build()), Ok(msg));
            }
        }
    }

    #[test]
    fn counts_and_lengths_out_of_bounds_are_refused() {
        let mut bytes = sample().build().to_vec();
        bytes[0] = 33;
        let err = Message::parse(&Bytes::from(bytes.clone())).unwrap_err();
        assert!(matches!(
            err,
            WireError::Value {
                what: "lm_bufcount",
                ..
            }
        ));
        bytes[0] = 4;
        bytes[32..36].copy_from_slice(&0xfa001u32.to_le_bytes());
        let err = Message::parse(&Bytes::from(bytes)).unwrap_err();
        assert!(matches!(
            err,
            WireError::TooLong {
                what: "lm_buflens",
                ..
            }
        ));
    }

    #[test]
    fn the_body_of_an_old_peer_is_padded() {
        let body = PtlrpcBody {
            pb_opc: 400,
            ..Default::default()
        };
        let mut m = Message::new(&body, []);
        m.bufs[0] = m.bufs[0].slice(..152);
        assert_eq!(m.body().unwrap(), body);
        m.bufs[0] = m.bufs[0].slice(..151);
        assert!(m.body().is_err());
    }

    #[test]
    fn an_early_reply_takes_224_bytes_and_has_a_crc32() {
        assert_eq!(EARLY_REPLY_SIZE, 224);
        // The check value of CRC-32, 0xcbf43926, includes the final inversion.
        assert_eq!(early_reply_cksum(b"123456789"), !0xcbf4_3926);
    }
}
