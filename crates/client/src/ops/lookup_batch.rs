//! Batched lookups for directory listings with attributes.

use super::lookup::lookup_request;
use super::name_dir::NameDir;
use crate::client::Client;
use crate::cred::Cred;
use crate::inode::Child;
use crate::mdc::IntentReply;
use ldlm::LockMode;
use std::collections::BTreeMap;
use wire::{Errno, Fid, MDS_INODELOCK_LOOKUP};

/// Largest number of names in one request. (Lustre's clients send 64, or up to 1024.)
const BATCH_NAMES_MAX: usize = 128;

impl Client {
    /// Looks up the names without cached attributes, with few requests. Later lookups of these
    /// names then need no request. Skips a name whose lock the MDT cannot grant at once: the later
    /// lookup of that name waits for the lock. Skips names of stripes whose target does not support
    /// batches, or that have only one name which is not cached.
    pub async fn lookup_batch(&self, cred: &Cred, parent: Fid, names: &[&[u8]]) {
        let Ok(stripes) = self.stripes(cred, parent).await else {
            return;
        };
        let Some(layout) = stripes else {
            if let Ok(dir) = self.plain_dir(parent).await {
                self.lookup_batch_in(cred, &dir, names).await;
            }
            return;
        };
        let mut by_stripe: BTreeMap<Fid, Vec<&[u8]>> = BTreeMap::new();
        for name in names {
            if let Some(stripe) = layout.stripe_for_new(name) {
                by_stripe.entry(stripe).or_default().push(name);
            }
        }
        for (stripe, names) in by_stripe {
            if let Ok(dir) = self.stripe(parent, stripe, layout.head.lmv_layout_version).await {
                self.lookup_batch_in(cred, &dir, &names).await;
            }
        }
    }

    async fn lookup_batch_in(&self, cred: &Cred, dir: &NameDir<'_>, names: &[&[u8]]) {
        let mdc = dir.mdc;
        if !mdc.supports_batches() {
            return;
        }
        let uncached = names.iter().filter(|name| !self.is_cached(dir, name));
        let uncached: Vec<&[u8]> = uncached.copied().collect();
        if uncached.len() < 2 {
            return;
        }
        let suppgid = self.suppgid(cred, dir.shown).await;
        for names in uncached.chunks(BATCH_NAMES_MAX) {
            let intents = names
                .iter()
                .map(|name| lookup_request(mdc, cred, dir.fid, name, suppgid));
            match mdc.intents(intents.collect()).await {
                Ok(replies) => self.cache_replies(dir.fid, names, &replies),
                Err(e) => {
                    tracing::debug!(
                        "batched lookup of {} names in {} failed: {e}",
                        names.len(),
                        dir.fid
                    );
                }
            }
        }
    }

    fn cache_replies(&self, parent: Fid, names: &[&[u8]], replies: &[Result<IntentReply, Errno>]) {
        for (name, reply) in names.iter().zip(replies) {
            match reply {
                Ok(reply) if reply.status.is_ok() && reply.is_elsewhere() => {
                    self.cache_name(reply, (parent, name));
                }
                Ok(reply) if reply.status.is_ok() => {
                    self.cache_reply(reply, Some((parent, name)));
                }
                _ => {}
            }
        }
    }

    /// Whether the name's file and the file's attributes are cached under locks.
    fn is_cached(&self, dir: &NameDir<'_>, name: &[u8]) -> bool {
        let Some(Child::File(fid)) = self.inodes.child(dir.fid, name) else {
            return false;
        };
        dir.mdc.find(fid, LockMode::Cr, MDS_INODELOCK_LOOKUP).is_some()
            && self
                .lmv
                .known_mdc_of(fid)
                .is_some_and(|mdc| self.cached_md(mdc, fid).is_some())
    }
}
