//! Splits a buffer into its leaves: single fields with path and position, for tools that compare or
//! rewrite messages field by field.
//!
//! A FID, an object id and a lock resource are one leaf each. File layouts, ACLs, LVBs of objects,
//! results of fid2path, logs and batches are split too; other opaque bytes are one leaf.

use super::codec::{Codec, reint_ops};
use super::rmf::Rmf;
use crate::batch;
use crate::codec::{Reader, Result, WireError, round_up8};
use crate::config::Config;
use crate::consts::llog::OBD_CFG_REC;
use crate::consts::lov::{LOV_MAGIC_COMP_V1, LOV_MAGIC_V1, LOV_MAGIC_V3, LOV_USER_MAGIC_SPECIFIC};
use crate::consts::opcodes::{LDLM_ENQUEUE, LLOG_FIRST_OPC, LLOG_LAST_OPC, MDS_GET_INFO};
use crate::ea::{PosixAclXattrEntry, PosixAclXattrHeader};
use crate::fid::{GetinfoFid2path, LuFid, OstId};
use crate::layout::{Shape, StructLayout, WireStruct};
use crate::ldlm::{LdlmRequest, LdlmResId, OstLvb};
use crate::llog_file::records;
use crate::lov::{LovCompMdEntryV1, LovCompMdV1, LovMdsMdV1, LovMdsMdV3, LovOstDataV1};
use crate::msg::Message;
use crate::out::{BatchUpdateReply, BatchUpdateRequest, ButUpdateHeader};
use crate::ptlrpc::LustreMsgV2;
use crate::striping::LovLayout;
use bytes::Bytes;
use std::fmt;
use std::ops::Range;

/// The buffers of a getattr in a batch: those of a getattr intent without `ptlrpc_body`.
const GETATTR: &[Rmf] = &[
    Rmf::DlmReq,
    Rmf::LdlmIntent,
    Rmf::MdtBody,
    Rmf::Capa1,
    Rmf::Name,
    Rmf::FileSecctxName,
];
/// The buffers of the reply to a getattr in a batch, without `ptlrpc_body`.
const GETATTR_REPLY: &[Rmf] = &[
    Rmf::DlmRep,
    Rmf::MdtBody,
    Rmf::MdtMd,
    Rmf::Acl,
    Rmf::Capa1,
    Rmf::FileSecctx,
    Rmf::DefaultMdtMd,
    Rmf::FileEncctx,
];

/// The value of a leaf.
#[derive(Clone, PartialEq, Eq)]
pub enum Value {
    /// A number of 1, 2, 4 or 8 bytes.
    Number(u64),
    /// Text up to its NUL.
    Text(Vec<u8>),
    /// A file's identifier.
    Fid(LuFid),
    /// An object's identifier.
    OstId(OstId),
    /// The resource of a lock.
    Resource(LdlmResId),
    /// Opaque bytes.
    Bytes(Vec<u8>),
}

impl fmt::Debug for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Number(n) => write!(f, "{n:#x}"),
            Value::Text(text) => write!(f, "{:?}", String::from_utf8_lossy(text)),
            Value::Fid(fid) => write!(f, "{fid}"),
            Value::OstId(id) => write!(f, "{id}"),
            Value::Resource(res) => write!(f, "{res}"),
            Value::Bytes(bytes) if bytes.len() > 64 => write!(f, "{} bytes", bytes.len()),
            Value::Bytes(bytes) => bytes.iter().try_for_each(|b| write!(f, "{b:02x}")),
        }
    }
}

/// One field of a buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leaf {
    /// The path of names, such as `mdt_body.mbo_fid1`.
    pub path: String,
    /// The byte range in the buffer; empty for derived values.
    pub at: Range<usize>,
    /// The value.
    pub value: Value,
}

impl Leaf {
    /// The last name of the path, without an index.
    pub fn name(&self) -> &str {
        let last = self.path.rsplit('.').next().unwrap_or_default();
        last.split('[').next().unwrap_or_default()
    }
}

/// The leaves of a buffer in a message with this opcode; the first one is the buffer's length.
///
/// # Errors
///
/// The content does not fit the type of the buffer.
pub fn leaves(rmf: Rmf, opcode: u32, buf: &[u8]) -> Result<Vec<Leaf>> {
    let name = rmf.name().trim_start_matches("RMF_").to_ascii_lowercase();
    let mut out = Leaves {
        buf,
        leaves: Vec::new(),
    };
    out.push(format!("{name}.len"), 0..0, Value::Number(buf.len() as u64));
    if buf.is_empty() {
        return Ok(out.leaves);
    }
    match rmf.codec() {
        Codec::Struct(ops) => {
            out.structure(&name, &ops.layout, 0)?;
            if !out.batch(&name, rmf)? {
                out.rest(&name, ops.layout.size);
            }
        }
        Codec::Reint => {
            let layout = reint_ops(buf)?.layout;
            out.structure(&name, &layout, 0)?;
            out.rest(&name, layout.size);
        }
        Codec::Array(ops) => {
            for (i, begin) in (0..buf.len()).step_by(ops.layout.size).enumerate() {
                out.structure(&format!("{name}[{i}]"), &ops.layout, begin)?;
            }
        }
        Codec::Lock => {
            let fixed = LdlmRequest::LAYOUT
                .fields
                .iter()
                .filter(|f| f.offset < LdlmRequest::FIXED);
            for field in fixed {
                out.shape(
                    &format!("{name}.{}", field.name),
                    &field.shape,
                    field.offset..field.offset + field.size,
                )?;
            }
            out.array(
                &format!("{name}.lock_handle"),
                &Shape::Number,
                8,
                LdlmRequest::FIXED..buf.len(),
            )?;
        }
        Codec::Text => out.push(name, 0..buf.len(), Value::Text(crate::before_nul(buf).to_vec())),
        Codec::U32s => out.array(&name, &Shape::Number, 4, 0..buf.len())?,
        Codec::U64 => out.shape(&name, &Shape::Number, 0..8)?,
        Codec::Bytes => out.contents(&name, rmf, opcode)?,
    }
    Ok(out.leaves)
}

/// The leaves of a part of a batch that the server fetched as bulk data.
///
/// # Errors
///
/// The part is malformed.
pub fn leaves_of_batch(name: &str, part: &[u8]) -> Result<Vec<Leaf>> {
    let mut out = Leaves {
        buf: part,
        leaves: Vec::new(),
    };
    out.requests(name, 0..part.len())?;
    Ok(out.leaves)
}

/// The leaves of a structure.
///
/// # Errors
///
/// The buffer is shorter than the structure.
pub fn leaves_of<T: WireStruct>(name: &str, buf: &[u8]) -> Result<Vec<Leaf>> {
    let mut out = Leaves {
        buf,
        leaves: Vec::new(),
    };
    out.structure(name, &T::LAYOUT, 0)?;
    Ok(out.leaves)
}

/// Collects the leaves of a buffer.
struct Leaves<'a> {
    buf: &'a [u8],
    leaves: Vec<Leaf>,
}

impl Leaves<'_> {
    fn push(&mut self, path: String, at: Range<usize>, value: Value) {
        self.leaves.push(Leaf { path, at, value });
    }

    fn bytes(&self, at: &Range<usize>) -> Result<&[u8]> {
        let found = self.buf.len();
        self.buf.get(at.clone()).ok_or(WireError::Short {
            what: "field",
            expected: at.end,
            found,
        })
    }

    /// Adds the bytes behind the last structure of a buffer.
    fn rest(&mut self, path: &str, from: usize) {
        if let Some(rest) = self.buf.get(from..).filter(|b| !b.is_empty()) {
            let value = Value::Bytes(rest.to_vec());
            self.push(format!("{path}.rest"), from..self.buf.len(), value);
        }
    }

    fn structure(&mut self, path: &str, layout: &StructLayout, begin: usize) -> Result<()> {
        for field in layout.fields {
            let at = begin + field.offset..begin + field.offset + field.size;
            self.shape(
                &format!("{path}.{}", field.name.trim_start_matches("r#")),
                &field.shape,
                at,
            )?;
        }
        Ok(())
    }

    fn array(&mut self, path: &str, item: &Shape, size: usize, at: Range<usize>) -> Result<()> {
        for (i, begin) in at.clone().step_by(size).enumerate() {
            self.shape(&format!("{path}[{i}]"), item, begin..begin + size)?;
        }
        Ok(())
    }

    fn shape(&mut self, path: &str, shape: &Shape, at: Range<usize>) -> Result<()> {
        let bytes = self.bytes(&at)?;
        let value = match shape {
            Shape::Number => {
                let mut word = [0; 8];
                let low_bytes = word.get_mut(..bytes.len());
                low_bytes
                    .ok_or(WireError::Short {
                        what: "number",
                        expected: bytes.len(),
                        found: 8,
                    })?
                    .copy_from_slice(bytes);
                Value::Number(u64::from_le_bytes(word))
            }
            Shape::Text => Value::Text(crate::before_nul(bytes).to_vec()),
            Shape::Array(_, 1) => Value::Bytes(bytes.to_vec()),
            Shape::Array(item, size) => return self.array(path, item, *size, at),
            Shape::Struct(layout) if layout.name == LuFid::NAME => Value::Fid(LuFid::from_bytes(bytes)?),
            Shape::Struct(layout) if layout.name == OstId::NAME => Value::OstId(OstId::from_bytes(bytes)?),
            Shape::Struct(layout) if layout.name == LdlmResId::NAME => {
                Value::Resource(LdlmResId::from_bytes(bytes)?)
            }
            Shape::Struct(layout) => return self.structure(path, layout, at.start),
        };
        self.push(path.to_owned(), at, value);
        Ok(())
    }

    /// Adds a buffer of opaque bytes, split if this module knows the content.
    fn contents(&mut self, name: &str, rmf: Rmf, opcode: u32) -> Result<()> {
        match rmf {
            Rmf::Eadata if (LLOG_FIRST_OPC..LLOG_LAST_OPC).contains(&opcode) => self.log(name),
            Rmf::MdtMd | Rmf::DlmLvb | Rmf::Eadata | Rmf::DefaultMdtMd if LovLayout::is_layout(self.buf) => {
                self.layout(name, 0)
            }
            Rmf::DlmLvb if self.buf.len() == OstLvb::SIZE => self.structure(name, &OstLvb::LAYOUT, 0),
            Rmf::GetinfoVal if opcode == MDS_GET_INFO && self.buf.len() >= GetinfoFid2path::SIZE => {
                self.structure(name, &GetinfoFid2path::LAYOUT, 0)?;
                let at = GetinfoFid2path::SIZE..self.buf.len();
                let path = crate::before_nul(self.bytes(&at)?).to_vec();
                self.push(format!("{name}.path"), at, Value::Text(path));
                Ok(())
            }
            // Servers send zeros in the place of an unused ACL.
            Rmf::Acl if self.buf.len() >= PosixAclXattrHeader::SIZE && self.buf.iter().any(|b| *b != 0) => {
                self.structure(name, &PosixAclXattrHeader::LAYOUT, 0)?;
                let entries = (self.buf.len() - PosixAclXattrHeader::SIZE) / PosixAclXattrEntry::SIZE;
                let end = PosixAclXattrHeader::SIZE + entries * PosixAclXattrEntry::SIZE;
                let item = Shape::Struct(&PosixAclXattrEntry::LAYOUT);
                self.array(
                    name,
                    &item,
                    PosixAclXattrEntry::SIZE,
                    PosixAclXattrHeader::SIZE..end,
                )?;
                self.rest(name, end);
                Ok(())
            }
            _ => {
                self.push(
                    name.to_owned(),
                    0..self.buf.len(),
                    Value::Bytes(self.buf.to_vec()),
                );
                Ok(())
            }
        }
    }

    /// Adds a file layout that starts at `begin`.
    fn layout(&mut self, path: &str, begin: usize) -> Result<()> {
        let bytes = self.bytes(&(begin..self.buf.len()))?;
        let head = match Reader::new("lmm_magic", bytes).u32()? {
            LOV_MAGIC_V1 => LovMdsMdV1::LAYOUT,
            LOV_MAGIC_V3 | LOV_USER_MAGIC_SPECIFIC => LovMdsMdV3::LAYOUT,
            LOV_MAGIC_COMP_V1 => {
                return self.components(path, LovCompMdV1::from_bytes(bytes)?.lcm_entry_count);
            }
            _ => {
                self.rest(path, begin);
                return Ok(());
            }
        };
        let count = usize::from(LovMdsMdV1::from_bytes(bytes)?.lmm_stripe_count);
        let present = (bytes.len().saturating_sub(head.size) / LovOstDataV1::SIZE).min(count);
        self.structure(path, &head, begin)?;
        let objects = begin + head.size..begin + head.size + present * LovOstDataV1::SIZE;
        self.array(
            &format!("{path}.lmm_objects"),
            &Shape::Struct(&LovOstDataV1::LAYOUT),
            LovOstDataV1::SIZE,
            objects,
        )
    }

    fn components(&mut self, path: &str, count: u16) -> Result<()> {
        self.structure(path, &LovCompMdV1::LAYOUT, 0)?;
        for i in 0..usize::from(count) {
            let at = LovCompMdV1::SIZE + i * LovCompMdEntryV1::SIZE;
            let path = format!("{path}.lcm_entries[{i}]");
            self.structure(&path, &LovCompMdEntryV1::LAYOUT, at)?;
            let entry = LovCompMdEntryV1::from_bytes(self.bytes(&(at..at + LovCompMdEntryV1::SIZE))?)?;
            let (from, len) = (entry.lcme_offset as usize, entry.lcme_size as usize);
            let part = self.bytes(&(from..from.saturating_add(len)))?;
            let mut inner = Leaves {
                buf: part,
                leaves: Vec::new(),
            };
            // Components are plain layouts: nested composites would allow endless recursion.
            if Reader::new("lmm_magic", part).u32()? != LOV_MAGIC_COMP_V1 {
                inner.layout(&path, 0)?;
            }
            self.leaves.extend(inner.leaves.into_iter().map(|l| Leaf {
                at: l.at.start + from..l.at.end + from,
                ..l
            }));
        }
        Ok(())
    }

    /// Adds the messages of a batch. Returns `false` if the buffer contains no messages of a batch.
    fn batch(&mut self, path: &str, rmf: Rmf) -> Result<bool> {
        match rmf {
            Rmf::ButHeader => {
                let inline = ButUpdateHeader::from_bytes(self.buf)?.buh_inline_length as usize;
                if inline == 0 {
                    return Ok(false);
                }
                let begin = ButUpdateHeader::SIZE;
                self.requests(path, begin..begin.saturating_add(inline))?;
            }
            Rmf::ButReply => {
                let replies = batch::parse_replies(&Bytes::copy_from_slice(self.buf))?;
                self.messages(path, BatchUpdateReply::SIZE, GETATTR_REPLY, &replies)?;
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn requests(&mut self, path: &str, at: Range<usize>) -> Result<()> {
        let requests = batch::parse_requests(&Bytes::copy_from_slice(self.bytes(&at)?))?;
        self.structure(path, &BatchUpdateRequest::LAYOUT, at.start)?;
        self.messages(path, at.start + BatchUpdateRequest::SIZE, GETATTR, &requests)
    }

    fn messages(&mut self, path: &str, begin: usize, format: &[Rmf], messages: &[Message]) -> Result<()> {
        let mut begin = begin;
        for (i, message) in messages.iter().enumerate() {
            let path = format!("{path}[{i}]");
            self.push(format!("{path}.lm_opc"), 0..0, Value::Number(message.opc.into()));
            let mut buf_begin = begin + LustreMsgV2::size_of_header(message.bufs.len());
            for (buf, rmf) in message.bufs.iter().zip(format) {
                let inner = leaves(*rmf, LDLM_ENQUEUE, buf)?;
                self.leaves.extend(inner.into_iter().map(|leaf| Leaf {
                    path: format!("{path}.{}", leaf.path),
                    at: leaf.at.start + buf_begin..leaf.at.end + buf_begin,
                    value: leaf.value,
                }));
                buf_begin += round_up8(buf.len());
            }
            begin += message.len();
        }
        Ok(())
    }

    /// Adds a block of a log: for each record a leaf with a text and an empty byte range.
    fn log(&mut self, path: &str) -> Result<()> {
        for record in records(self.buf) {
            let record = record?;
            let value = match record.kind {
                OBD_CFG_REC => format!("{:?}", Config::parse(record.data)?),
                kind => format!("{kind:#x}"),
            };
            self.push(
                format!("{path}.record[{}]", record.index),
                0..0,
                Value::Text(value.into_bytes()),
            );
        }
        Ok(())
    }
}
