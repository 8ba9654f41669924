//! Batched lookups for directory listings with attributes.

use super::lookup::lookup_request;
use crate::client::Client;
use crate::cred::Cred;
use crate::inode::Child;
use crate::mdc::{IntentReply, Mdc};
use ldlm::LockMode;
use wire::{Errno, Fid, MDS_INODELOCK_LOOKUP};

/// Largest number of names in one request. (Lustre's clients send 64, or up to 1024.)
const BATCH_NAMES_MAX: usize = 128;

impl Client {
    /// Looks up the names without cached attributes, with few requests. Later lookups of these
    /// names then need no request. Skips a name whose lock the MDT cannot grant at once: the later
    /// lookup of that name waits for the lock. Does nothing if the target does not support batches,
    /// or if only one name is not cached.
    pub async fn lookup_batch(&self, cred: &Cred, parent: Fid, names: &[&[u8]]) {
        let Ok(mdc) = self.lmv.mdc_of(parent).await else {
            return;
        };
        if !mdc.supports_batches() {
            return;
        }
        let uncached = names.iter().filter(|name| !self.is_cached(mdc, parent, name));
        let uncached: Vec<&[u8]> = uncached.copied().collect();
        if uncached.len() < 2 {
            return;
        }
        let suppgid = self.suppgid(cred, parent).await;
        for names in uncached.chunks(BATCH_NAMES_MAX) {
            let intents = names
                .iter()
                .map(|name| lookup_request(mdc, cred, parent, name, suppgid));
            match mdc.intents(intents.collect()).await {
                Ok(replies) => self.cache_replies(parent, names, &replies),
                Err(e) => tracing::debug!("batched lookup of {} names in {parent} failed: {e}", names.len()),
            }
        }
    }

    fn cache_replies(&self, parent: Fid, names: &[&[u8]], replies: &[Result<IntentReply, Errno>]) {
        for (name, reply) in names.iter().zip(replies) {
            if let Ok(reply) = reply
                && reply.status.is_ok()
            {
                self.cache_reply(reply, Some((parent, name)));
            }
        }
    }

    /// Whether the name's file and the file's attributes are cached under locks.
    fn is_cached(&self, mdc: &Mdc, parent: Fid, name: &[u8]) -> bool {
        let Some(Child::File(fid)) = self.inodes.child(parent, name) else {
            return false;
        };
        mdc.find(fid, LockMode::Cr, MDS_INODELOCK_LOOKUP).is_some() && self.cached_md(mdc, fid).is_some()
    }
}
