//! The measured store engines behind one small trait. A failed operation panics.

use std::path::Path;

/// The measured operations of an engine.
pub trait Engine: Send + Sync {
    /// Applies a batch: visible when this returns, and on disk if `durable`.
    fn batch(&self, puts: &mut dyn Iterator<Item = (&[u8], &[u8])>, durable: bool);
    fn get(&self, key: &[u8]) -> Option<Vec<u8>>;
    /// Reads up to `limit` entries with `from <= key < to`. Returns their number.
    fn scan(&self, from: &[u8], to: &[u8], limit: usize) -> usize;
    /// Waits until all applied batches are on disk.
    fn sync(&self);
}

/// Opens the engine's store in `path`, or creates an empty one.
pub fn open(name: &str, path: &Path) -> Box<dyn Engine> {
    std::fs::create_dir_all(path).expect("directory");
    match name {
        #[cfg(feature = "fjall")]
        "fjall" => Box::new(Fjall::open(path)),
        #[cfg(feature = "lmdb")]
        "lmdb" => Box::new(Lmdb::open(path, false)),
        #[cfg(feature = "lmdb")]
        "lmdb-nosync" => Box::new(Lmdb::open(path, true)),
        #[cfg(feature = "redb")]
        "redb" => Box::new(Redb::open(path)),
        other => panic!("unknown engine {other}"),
    }
}

#[cfg(feature = "fjall")]
pub struct Fjall(fjall::Database, fjall::Keyspace);

#[cfg(feature = "fjall")]
impl Fjall {
    fn open(path: &Path) -> Fjall {
        let db = fjall::Database::builder(path)
            .worker_threads(1)
            .cache_size(8 << 20)
            .manual_journal_persist(true)
            .max_journaling_size(64 << 20)
            .open()
            .expect("open");
        let options = || {
            fjall::KeyspaceCreateOptions::default()
                .max_memtable_size(8 << 20)
                .manual_journal_persist(true)
        };
        let k = db.keyspace("index", options).expect("keyspace");
        Fjall(db, k)
    }
}

#[cfg(feature = "fjall")]
impl Engine for Fjall {
    fn batch(&self, puts: &mut dyn Iterator<Item = (&[u8], &[u8])>, durable: bool) {
        let mut b = self.0.batch();
        if durable {
            b = b.durability(Some(fjall::PersistMode::SyncData));
        }
        for (k, v) in puts {
            b.insert(&self.1, k, v);
        }
        b.commit().expect("commit");
    }
    fn get(&self, key: &[u8]) -> Option<Vec<u8>> {
        self.1.get(key).expect("get").map(|v| v.to_vec())
    }
    fn scan(&self, from: &[u8], to: &[u8], limit: usize) -> usize {
        self.1
            .range(from..to)
            .take(limit)
            .filter_map(|g| g.size().ok())
            .count()
    }
    fn sync(&self) {
        self.0.persist(fjall::PersistMode::SyncData).expect("persist");
    }
}

#[cfg(feature = "lmdb")]
type Bytes = heed::types::Bytes;

/// The flag says that commits do not sync (`lmdb-nosync`).
#[cfg(feature = "lmdb")]
pub struct Lmdb(heed::Env<heed::WithoutTls>, heed::Database<Bytes, Bytes>, bool);

#[cfg(feature = "lmdb")]
impl Lmdb {
    fn open(path: &Path, nosync: bool) -> Lmdb {
        let mut o = heed::EnvOpenOptions::new().read_txn_without_tls();
        o.map_size(64 << 30).max_dbs(1);
        // SAFETY: the directory belongs to this process and is opened once.
        let env = unsafe {
            if nosync {
                o.flags(heed::EnvFlags::NO_SYNC);
            }
            o.open(path)
        }
        .expect("open");
        let mut t = env.write_txn().expect("txn");
        let db = env.create_database(&mut t, None).expect("database");
        t.commit().expect("commit");
        Lmdb(env, db, nosync)
    }
}

#[cfg(feature = "lmdb")]
impl Engine for Lmdb {
    fn batch(&self, puts: &mut dyn Iterator<Item = (&[u8], &[u8])>, durable: bool) {
        let mut t = self.0.write_txn().expect("txn");
        for (k, v) in puts {
            self.1.put(&mut t, k, v).expect("put");
        }
        t.commit().expect("commit");
        if durable && self.2 {
            self.0.force_sync().expect("sync");
        }
    }
    fn get(&self, key: &[u8]) -> Option<Vec<u8>> {
        let t = self.0.read_txn().expect("txn");
        self.1.get(&t, key).expect("get").map(|v| v.to_vec())
    }
    fn scan(&self, from: &[u8], to: &[u8], limit: usize) -> usize {
        let t = self.0.read_txn().expect("txn");
        let range = (std::ops::Bound::Included(from), std::ops::Bound::Excluded(to));
        self.1
            .range(&t, &range)
            .expect("range")
            .take(limit)
            .filter(|e| e.is_ok())
            .count()
    }
    fn sync(&self) {
        self.0.force_sync().expect("sync");
    }
}

#[cfg(feature = "redb")]
pub struct Redb(redb::Database);

#[cfg(feature = "redb")]
const TABLE: redb::TableDefinition<&[u8], &[u8]> = redb::TableDefinition::new("index");

#[cfg(feature = "redb")]
impl Redb {
    fn open(path: &Path) -> Redb {
        let db = redb::Database::builder()
            .set_cache_size(8 << 20)
            .create(path.join("db"))
            .expect("open");
        let t = db.begin_write().expect("txn");
        t.open_table(TABLE).expect("table");
        t.commit().expect("commit");
        Redb(db)
    }
}

#[cfg(feature = "redb")]
impl Engine for Redb {
    fn batch(&self, puts: &mut dyn Iterator<Item = (&[u8], &[u8])>, durable: bool) {
        let mut t = self.0.begin_write().expect("txn");
        t.set_durability(if durable {
            redb::Durability::Immediate
        } else {
            redb::Durability::None
        })
        .expect("durability");
        {
            let mut table = t.open_table(TABLE).expect("table");
            for (k, v) in puts {
                table.insert(k, v).expect("insert");
            }
        }
        t.commit().expect("commit");
    }
    fn get(&self, key: &[u8]) -> Option<Vec<u8>> {
        use redb::ReadableDatabase;
        let t = self.0.begin_read().expect("txn");
        t.open_table(TABLE)
            .expect("table")
            .get(key)
            .expect("get")
            .map(|v| v.value().to_vec())
    }
    fn scan(&self, from: &[u8], to: &[u8], limit: usize) -> usize {
        use redb::ReadableDatabase;
        let t = self.0.begin_read().expect("txn");
        t.open_table(TABLE)
            .expect("table")
            .range(from..to)
            .expect("range")
            .take(limit)
            .filter(|e| e.is_ok())
            .count()
    }
    fn sync(&self) {
        self.batch(&mut std::iter::empty(), true);
    }
}
