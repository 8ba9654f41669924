//! Parses, rebuilds and formats buffers of a type that is known only at run time, for tools that
//! display or check messages.

use crate::codec::{Reader, Result, WireError, Writer};
use crate::consts::opcodes::{
    REINT_CREATE, REINT_LINK, REINT_MIGRATE, REINT_OPEN, REINT_RENAME, REINT_RESYNC, REINT_RMENTRY,
    REINT_SETATTR, REINT_SETXATTR, REINT_UNLINK,
};
use crate::layout::{StructLayout, WireStruct};
use crate::ldlm::LdlmRequest;
use crate::reint::{
    MdtRecCreate, MdtRecLink, MdtRecReint, MdtRecRename, MdtRecResync, MdtRecSetattr, MdtRecSetxattr,
    MdtRecUnlink,
};
use bytes::Bytes;
use std::fmt::Debug;

/// Operations on the bytes of a structure.
#[derive(Clone, Copy, Debug)]
pub struct Ops {
    /// Name, size and fields.
    pub layout: StructLayout,
    /// Parses the bytes and builds them again.
    pub rebuild: fn(&[u8]) -> Result<Bytes>,
    /// Parses the bytes and formats the nonzero fields.
    pub show: fn(&[u8]) -> Result<String>,
}

impl Ops {
    /// The operations for a structure type.
    pub const fn of<T: WireStruct + Debug>() -> Ops {
        Ops {
            layout: T::LAYOUT,
            rebuild: |b| T::from_bytes(b).map(|v| v.to_bytes()),
            show: |b| T::from_bytes(b).map(|v| format!("{v:?}")),
        }
    }
}

/// The type of a buffer's content.
#[derive(Clone, Copy, Debug)]
pub enum Codec {
    /// One structure; more bytes may follow it.
    Struct(Ops),
    /// An array of structures.
    Array(Ops),
    /// A lock request: a structure with an array of handles at its end.
    Lock,
    /// The record of a modifying operation; its first word is the opcode.
    Reint,
    /// Text up to a NUL.
    Text,
    /// Words of 4 bytes.
    U32s,
    /// One word of 8 bytes.
    U64,
    /// Opaque bytes.
    Bytes,
}

/// The structure of the record of a modifying operation; `mdt_rec_reint` for an unknown opcode.
///
/// # Errors
///
/// The buffer has no opcode.
pub fn reint_ops(buf: &[u8]) -> Result<Ops> {
    Ok(match Reader::new("rr_opcode", buf).u32()? {
        REINT_SETATTR => Ops::of::<MdtRecSetattr>(),
        REINT_CREATE | REINT_OPEN => Ops::of::<MdtRecCreate>(),
        REINT_LINK => Ops::of::<MdtRecLink>(),
        REINT_UNLINK | REINT_RMENTRY => Ops::of::<MdtRecUnlink>(),
        REINT_RENAME | REINT_MIGRATE => Ops::of::<MdtRecRename>(),
        REINT_SETXATTR => Ops::of::<MdtRecSetxattr>(),
        REINT_RESYNC => Ops::of::<MdtRecResync>(),
        _ => Ops::of::<MdtRecReint>(),
    })
}

impl Codec {
    /// Parses a buffer by its type and builds it again. An empty buffer is unused and stays empty.
    ///
    /// # Errors
    ///
    /// The content does not fit the type.
    pub fn rebuild(&self, buf: &[u8]) -> Result<Bytes> {
        if buf.is_empty() {
            return Ok(Bytes::new());
        }
        let mut w = Writer::with_capacity(buf.len());
        match self {
            Codec::Struct(ops) => append(&mut w, *ops, buf)?,
            Codec::Reint => append(&mut w, reint_ops(buf)?, buf)?,
            Codec::Array(ops) => {
                for item in items(ops.layout, buf)? {
                    w.put(&(ops.rebuild)(item)?);
                }
            }
            Codec::Lock => {
                let words = lock_handles(buf)?;
                let head = LdlmRequest::from_bytes(&with_two_handles(buf))?;
                let built = head.to_bytes_with(&words);
                w.put(&built[..buf.len().min(built.len())]);
            }
            Codec::U32s => {
                let mut r = Reader::new("u32 array", buf);
                while !r.is_empty() {
                    w.u32(r.u32()?);
                }
            }
            Codec::U64 => w.u64(Reader::new("u64", buf).u64()?),
            Codec::Text | Codec::Bytes => w.put(buf),
        }
        Ok(w.finish())
    }

    /// Formats the content: nonzero fields of structures, but only the length of opaque bytes. An
    /// empty buffer gives an empty text.
    ///
    /// # Errors
    ///
    /// The content does not fit the type.
    pub fn show(&self, buf: &[u8]) -> Result<String> {
        if buf.is_empty() {
            return Ok(String::new());
        }
        Ok(match self {
            Codec::Struct(ops) => (ops.show)(buf)?,
            Codec::Reint => (reint_ops(buf)?.show)(buf)?,
            Codec::Array(ops) => items(ops.layout, buf)?
                .map(ops.show)
                .collect::<Result<Vec<_>>>()?
                .join(", "),
            Codec::Lock => {
                let head = LdlmRequest::from_bytes(&with_two_handles(buf))?;
                format!("{:?} handles {:x?}", head.lock_desc, lock_handles(buf)?)
            }
            Codec::Text => format!("{:?}", String::from_utf8_lossy(crate::before_nul(buf))),
            Codec::U32s => format!(
                "{:?}",
                buf.as_chunks::<4>()
                    .0
                    .iter()
                    .map(|w| u32::from_le_bytes(*w))
                    .collect::<Vec<_>>()
            ),
            Codec::U64 => format!("{:#x}", Reader::new("u64", buf).u64()?),
            Codec::Bytes => format!("{} bytes", buf.len()),
        })
    }
}

/// Appends the rebuilt structure, and the bytes behind it unchanged.
fn append(w: &mut Writer, ops: Ops, buf: &[u8]) -> Result<()> {
    w.put(&(ops.rebuild)(buf)?);
    w.put(&buf[ops.layout.size..]);
    Ok(())
}

/// The items of an array, which must fill the buffer.
fn items(layout: StructLayout, buf: &[u8]) -> Result<std::slice::ChunksExact<'_, u8>> {
    let chunks = buf.chunks_exact(layout.size);
    match chunks.remainder().len() {
        0 => Ok(chunks),
        found => Err(WireError::Short {
            what: layout.name,
            expected: layout.size,
            found,
        }),
    }
}

/// All handles in the buffer; ignores the count in the request.
fn lock_handles(buf: &[u8]) -> Result<Vec<u64>> {
    let fixed = LdlmRequest::FIXED;
    let (found, what) = (buf.len(), LdlmRequest::NAME);
    let words = buf.get(fixed..).ok_or(WireError::Short {
        what,
        expected: fixed,
        found,
    })?;
    Ok(words
        .as_chunks::<8>()
        .0
        .iter()
        .map(|w| u64::from_le_bytes(*w))
        .collect())
}

/// The buffer, extended with zeros to the size of a request with two handles.
fn with_two_handles(buf: &[u8]) -> Vec<u8> {
    let mut whole = buf.to_vec();
    whole.resize(LdlmRequest::SIZE.max(buf.len()), 0);
    whole
}
