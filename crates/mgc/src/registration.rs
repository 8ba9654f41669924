//! Nacre's additions to Lustre's registration, in extra buffers that Lustre ignores. A request can
//! have a proof of the join token and the UUID of the target's store. A refusal has its reason as
//! text.

use bytes::Bytes;
use rpc::{Reply, ReplyMsg, ServerRequest};
use wire::{Errno, MgsTargetInfo, UUID_MAX, WireStruct, before_nul, nul_terminated};

/// Index of the request's buffer with the proof of the join token; the `ptlrpc_body` has index 0.
const PROOF: usize = 3;
/// Index of the request's buffer with the store's UUID.
const STORE: usize = 4;
/// Index of the reply's buffer with the reason of a refusal.
const REASON: usize = 2;
/// Maximum length of the reason in bytes: the reply must fit into the target's reply buffer.
const REASON_MAX: usize = 1024;

/// Builds the buffers of a request after the `ptlrpc_body`: `info`, Lustre's list of longer NIDs
/// (empty), the proof of the join token, the UUID of the store.
pub(crate) fn request(info: Bytes, proof: Option<[u8; 32]>, store: Option<&str>) -> Vec<Bytes> {
    let mut bufs = vec![info];
    let mut put = |index: usize, buf: Bytes| {
        // `bufs` begins after the ptlrpc_body.
        bufs.resize(index - 1, Bytes::new());
        bufs.push(buf);
    };
    if let Some(proof) = proof {
        put(PROOF, Bytes::copy_from_slice(&proof));
    }
    if let Some(store) = store {
        put(STORE, nul_terminated(store.as_bytes()));
    }
    bufs
}

/// The proof of the join token; empty without one.
pub fn proof(req: &ServerRequest) -> &[u8] {
    req.buf(PROOF)
}

/// The UUID of the target's store, if the target sent one.
///
/// # Errors
///
/// `EPROTO` if it is too long for a UUID, or has other characters than hexadecimal digits and `-`.
pub fn store(req: &ServerRequest) -> Result<Option<String>, Errno> {
    let uuid = before_nul(req.buf(STORE));
    if uuid.is_empty() {
        return Ok(None);
    }
    let is_uuid = uuid.len() < UUID_MAX as usize && uuid.iter().all(|b| b.is_ascii_hexdigit() || *b == b'-');
    match std::str::from_utf8(uuid) {
        Ok(uuid) if is_uuid => Ok(Some(uuid.to_owned())),
        _ => Err(Errno::EPROTO),
    }
}

/// The reply to a refused registration of a Nacre target, with the reason as text.
pub fn refusal(errno: Errno, why: &str) -> Reply {
    let why = why.as_bytes();
    let text = Bytes::copy_from_slice(&why[..why.len().min(REASON_MAX)]);
    Reply::new(vec![MgsTargetInfo::default().to_bytes(), text]).with_status(errno.status())
}

/// The reason of a refusal, if the reply has one.
pub(crate) fn refusal_reason(reply: &ReplyMsg) -> Option<String> {
    let text = String::from_utf8_lossy(before_nul(reply.buf(REASON))).into_owned();
    (!text.is_empty()).then_some(text)
}
