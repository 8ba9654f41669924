//! Changes of names in a directory: the requests, and the directory's cached state during them.
//!
//! A directory's own target grants the locks on it. Another target may execute the change, if it
//! has the file.

use super::{IntentReply, IntentRequest, Mdc, Reint};
use crate::attr::MdAttr;
use crate::cred::Cred;
use crate::inode::{ATTR_BITS, DirChange};
use crate::ops::NameDir;
use bytes::Bytes;
use ldlm::LockMode;
use rpc::{EditReplay, ReplyMsg};
use std::sync::Arc;
use wire::{Errno, Fid, LockTerms, MdtBody, WireStruct};

/// Index of the buffer with the directory's attributes, in the reply to an open that created a
/// name.
const OPEN_REPLY_PARENT_ATTR: usize = 11;

/// A change of names in progress, with the target of the directory.
#[must_use]
pub(crate) struct NameChange {
    dir_mdc: Arc<Mdc>,
    /// The directory as the kernel knows it.
    shown: Fid,
    change: DirChange,
}

impl NameChange {
    /// Begins a change of names in a directory. `new_name` is a name that the change creates.
    pub(crate) fn begin(cred: &Cred, dir: &NameDir<'_>, new_name: Option<&[u8]>) -> NameChange {
        let mdc = dir.mdc;
        let attr_lock = mdc.find(dir.fid, LockMode::Pr, ATTR_BITS);
        let cookie = attr_lock.map(|lock| lock.info().cookie);
        NameChange {
            dir_mdc: mdc.clone(),
            shown: dir.shown,
            change: mdc.inodes.begin_change((dir.fid, cred.pid), new_name, cookie),
        }
    }

    /// Finishes the change, with the directory's attributes from a buffer of the reply. Caches the
    /// attributes if a lock covered them without interruption. Else it may invalidate the kernel's
    /// copy: the kernel may be about to cache old attributes from an answer to another task. The
    /// invalidation reaches the kernel before the answer to the change does, so the kernel does not
    /// cache the old attributes.
    async fn finish(self, attr_buf: Option<(&ReplyMsg, usize)>) {
        let mdc = &self.dir_mdc;
        let dir = self.change.dir();
        let nacre_terms = mdc.lock_terms() == LockTerms::Nacre;
        let attr_buf =
            attr_buf.filter(|(reply, index)| nacre_terms && reply.buf(*index).len() >= MdtBody::SIZE);
        let body = attr_buf.and_then(|(reply, index)| reply.get::<MdtBody>(index).ok());
        let lock = mdc.find(dir, LockMode::Pr, ATTR_BITS);
        let change = self.change;
        let stale = match (body, &lock) {
            (Some(body), Some(lock)) if body.mbo_fid1 == dir && change.is_under_lock(lock.info().cookie) => {
                let none = Bytes::new();
                change.finish_with_attr(MdAttr::from_reply(&body, &none, &none, mdc.precision()).attr)
            }
            _ => change.finish(),
        };
        drop(lock);
        if stale && let Some(cache) = mdc.kernel.get() {
            cache.inval_inode(self.shown, -1, 0).await;
        }
    }

    /// Finishes an open that found the name, so it changed nothing.
    fn finish_without_effect(self) {
        let lock = self.dir_mdc.find(self.change.dir(), LockMode::Pr, ATTR_BITS);
        let still_locked = lock
            .as_ref()
            .is_some_and(|lock| self.change.is_under_lock(lock.info().cookie));
        self.change.finish_without_effect(still_locked);
    }
}

impl Mdc {
    /// Sends the request for these changes (`REINT_*`). The request runs to its end even if the
    /// caller stops waiting. `attr_index`: index of the reply's buffer with the directory's
    /// attributes, if any. `edit_replay`: makes the request's replay from its reply.
    pub(crate) async fn send_changes(
        self: &Arc<Mdc>,
        changes: impl IntoIterator<Item = NameChange, IntoIter: Send> + Send + 'static,
        bufs: Vec<Bytes>,
        attr_index: Option<usize>,
        edit_replay: Option<EditReplay>,
    ) -> Result<Reint, Errno> {
        let mdc = self.clone();
        let request = async move {
            let answer = mdc.reint_request(bufs, edit_replay).await;
            let reply = match &answer {
                Ok(Reint::Done(reply)) => Some(reply),
                _ => None,
            };
            for change in changes {
                change.finish(reply.zip(attr_index)).await;
            }
            answer
        };
        cpt::detach_on_drop(request).await
    }

    /// Sends an open that creates the name if it is missing. The request runs to its end even if
    /// the caller stops waiting.
    pub(crate) async fn open_or_create(
        self: &Arc<Mdc>,
        change: NameChange,
        intent: IntentRequest,
    ) -> Result<IntentReply, Errno> {
        let mdc = self.clone();
        let request = async move {
            let reply = mdc.intent(intent).await;
            match &reply {
                Ok(reply) if reply.name_existed() => change.finish_without_effect(),
                _ => {
                    let attr_buf = reply.as_ref().ok().map(|r| (&r.reply, OPEN_REPLY_PARENT_ATTR));
                    change.finish(attr_buf).await;
                }
            }
            reply
        };
        cpt::detach_on_drop(request).await
    }
}
