//! `MDS_BATCH`: many lookups in one request. The target executes each lookup like a separate
//! request, but does not wait for its lock: if the lock is not available at once, the lookup fails
//! with `EBUSY`, and the client repeats it as a separate request. Waiting could deadlock: the
//! lock's holder may itself wait for a lock of an earlier lookup of the batch, which the client
//! cancels only after the batch's reply.
//!
//! Lustre's server ends a batch at the first failure; here the other lookups continue. Repeating a
//! lookup is harmless, so a resent batch is executed again.

use bytes::Bytes;
use rpc::{Reply, ServerRequest};
use tokio::time::Instant;
use wire::batch::{BATCH_MAX, BatchBody, BatchReplies, parse_requests};
use wire::format::bufs;
use wire::{
    BUT_GETATTR, DISP_LOOKUP_NEG, Errno, LdlmIntent, LdlmRequest, MDS_BULK_PORTAL, Message, WireError,
    before_nul,
};

use super::{GETATTR, IntentResult, LOOKUP, getattr::LookupRequest};
use crate::{
    stats::{self, Op},
    target::{HandlerResult, Mdt},
};

impl Mdt {
    /// Executes `MDS_BATCH`.
    pub(crate) async fn execute_batch(&self, req: &mut ServerRequest) -> HandlerResult {
        let (mut replies, mut status) = (BatchReplies::default(), 0);
        for message in sub_requests(req).await? {
            // Yields to the worker's other tasks from time to time.
            tokio::task::coop::consume_budget().await;
            let (reply, handle) = match parse_lookup(&message) {
                Ok(lookup) => self.answer_lookup(req, &lookup).await?,
                // The client must get the locks of earlier lookups, so the reply has their results.
                // From their number, the client learns which lookups were executed.
                Err(errno) => {
                    status = errno.status();
                    break;
                }
            };
            if !replies.add(reply) {
                self.locks.server().cancel(&req.export, &[handle]);
                status = Errno::EOVERFLOW.status();
                break;
            }
        }
        Ok(Reply::new(vec![replies.build()]).with_status(status))
    }

    /// The reply to one lookup, and the handle of its lock; 0 without a lock.
    ///
    /// # Errors
    ///
    /// `ENOTCONN` if the client's connection has ended, as in [`IntentResult::reply`].
    async fn answer_lookup(
        &self,
        req: &ServerRequest,
        lookup: &LookupRequest,
    ) -> Result<(Message, u64), Errno> {
        let started = Instant::now();
        let result = self.lookup_intent(req, lookup).await;
        let duration = started.elapsed();
        stats::record(req, Op::GETATTR, duration);
        if self.dir_stats.is_recording() && !lookup.name.is_empty() {
            let directory = lookup.request.mbo_fid1;
            self.dir_stats.add(req.cpt, directory, Op::GETATTR, duration);
        }
        let (status, handle) = (lookup_status(&result), result.lock.handle);
        let message = Message {
            // In a reply of a batch, this field has the status.
            opc: status as u32,
            bufs: result.reply(7)?.bufs,
            ..Message::default()
        };
        Ok((message, handle))
    }
}

/// The status of a lookup: 0 if the client got a lock.
fn lookup_status(result: &IntentResult) -> i32 {
    match result.errno {
        Some(errno) => errno.status(),
        None if result.disposition & DISP_LOOKUP_NEG != 0 => Errno::ENOENT.status(),
        None => 0,
    }
}

/// The messages of a batch, inline or fetched by bulk.
async fn sub_requests(req: &ServerRequest) -> Result<Vec<Message>, Errno> {
    let malformed = |error: WireError| {
        lnet::warn_rate_limited!(peer = %req.peer, xid = %req.xid, %error, "MDS_BATCH refused with EPROTO: malformed batch");
        Errno::EPROTO
    };
    let pieces = match BatchBody::parse(&req.bytes(bufs::BATCH_HEADER), req.buf(bufs::BATCH_BUFS))
        .map_err(malformed)?
    {
        BatchBody::Inline(piece) => vec![piece],
        BatchBody::Bulk(sizes) => {
            let len = sizes.iter().sum();
            let fetched = req.bulk_get(MDS_BULK_PORTAL, &[len]).await?;
            let mut all: Bytes = fetched.into_iter().next().unwrap_or_default().into_bytes();
            let piece = |size: &u32| all.split_to(all.len().min(*size as usize));
            sizes.iter().map(piece).collect()
        }
    };
    let mut messages = Vec::new();
    for piece in pieces {
        messages.append(&mut parse_requests(&piece).map_err(malformed)?);
        if messages.len() > BATCH_MAX {
            return Err(malformed(WireError::TooLong {
                what: "messages of a batch",
                limit: BATCH_MAX,
                found: messages.len(),
            }));
        }
    }
    Ok(messages)
}

/// The position of a request's buffer in a message of a batch, which has no `ptlrpc_body`.
const fn sub_buf(buf: usize) -> usize {
    buf - 1
}

/// Parses one lookup. `ENOTSUPP` for other messages, `EPROTO` for a malformed one.
fn parse_lookup(message: &Message) -> Result<LookupRequest, Errno> {
    if message.opc != BUT_GETATTR {
        return Err(Errno::ENOTSUPP);
    }
    let dlm: LdlmRequest = message.get(sub_buf(bufs::DLM_REQ)).map_err(|_| Errno::EPROTO)?;
    let intent: LdlmIntent = message.get(sub_buf(bufs::INTENT)).map_err(|_| Errno::EPROTO)?;
    if !matches!(intent.opc, GETATTR | LOOKUP) {
        return Err(Errno::EPROTO);
    }
    let name = message.bytes(sub_buf(bufs::INTENT_NAME));
    let len = before_nul(&name).len();
    Ok(LookupRequest {
        cookie: dlm.lock_handle[0],
        opc: intent.opc,
        request: message
            .get(sub_buf(bufs::INTENT_BODY))
            .map_err(|_| Errno::EPROTO)?,
        name: name.slice(..len),
        wait: false,
    })
}
