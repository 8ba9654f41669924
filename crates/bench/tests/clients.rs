//! Tests of mdtest and mdsrate with clients of a complete file system in this process.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use bench::mdsrate::{self, Format, Mode};
use bench::{Communicator, LibrarySubject, Subject, Task, TaskProgress, mdtest};
use testkit::Cluster;
use tokio::runtime::Handle;

/// Tasks, each with its own client.
async fn tasks(cluster: &Cluster, count: usize) -> Vec<Task> {
    let progress = Arc::new(TaskProgress::default());
    let mut tasks = Vec::new();
    for comm in Communicator::threads(count) {
        let subject = LibrarySubject::new("library", cluster.mount().await, Handle::current());
        tasks.push(Task {
            measures_process: comm.rank() == 0,
            subject: Arc::new(subject.with_root("/out")),
            progress: progress.clone(),
            comm,
        });
    }
    tasks
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn separate_clients_share_a_tree_and_clean_up() {
    let cluster = Cluster::start(2).await;
    let root = LibrarySubject::new("root", cluster.mount().await, Handle::current());
    let options = mdtest::Options {
        items: 6,
        branch_factor: 2,
        depth: 1,
        stride: 1,
        write_bytes: 5000,
        read_bytes: 5000,
        verify_read: true,
        verify_write: true,
        stripes: Some(2),
        ..mdtest::Options::default()
    };
    let tasks = tasks(&cluster, 3).await;
    let run = move || {
        let (report, outcome) = mdtest::run(&options, tasks);
        outcome.unwrap();
        assert!(root.list("").unwrap().is_empty());
        report.unwrap()
    };
    let report = tokio::task::spawn_blocking(run).await.unwrap();
    assert_eq!(report.wrong_reads, 0);
    let operations = |name: &str| {
        let mut figures = report.figures.iter();
        figures.find(|f| f.operation == name).unwrap().operations
    };
    assert_eq!(
        (
            operations("Directory removal"),
            operations("File read"),
            operations("Tree removal")
        ),
        (18, 18, 3)
    );
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn create_makes_an_object_for_each_stripe_and_mknod_makes_none() {
    let cluster = Cluster::start(1).await;
    let object_count = async |c: &Cluster| {
        let client = c.mount().await;
        let cred = client::Cred::root();
        let out = client
            .lookup(&cred, client.root(), b"out")
            .await
            .unwrap()
            .attr
            .fid;
        let dir = client.lookup(&cred, out, b"d0").await.unwrap().attr.fid;
        let file = client.lookup(&cred, dir, b"f1").await.unwrap().attr.fid;
        match client.getstripe(&cred, file).await {
            Ok(layout) => client::FileLayout::parse(layout).unwrap().count(),
            Err(_) => 0,
        }
    };
    let options = |mode, stripes| mdsrate::Options {
        mode,
        dirs: Some(Format::parse("d%d").unwrap()),
        dir_count: 1,
        mounts: None,
        mdt_count: None,
        files: "f%%d".to_owned(),
        begin: 0,
        file_count: Some(5),
        iterations: None,
        time: None,
        stripes,
        not_exclusive: false,
        with_xattr: true,
        small_write: false,
        recreate: false,
        ignore: false,
        readdir_order: false,
        seed: 1,
    };
    let subject = LibrarySubject::new("root", cluster.mount().await, Handle::current());
    tokio::task::spawn_blocking(move || subject.make_dir("", "out").unwrap())
        .await
        .unwrap();
    for (mode, stripes, expected) in [
        (Mode::Create, Some(0), 0),
        (Mode::Mknod, None, 0),
        (Mode::Create, Some(1), 1),
    ] {
        let tasks = tasks(&cluster, 2).await;
        let create = options(mode, stripes);
        let run = move || mdsrate::run(&create, tasks).1.unwrap();
        tokio::task::spawn_blocking(run).await.unwrap();
        assert_eq!(object_count(&cluster).await, expected, "{mode:?}");
        let tasks = self::tasks(&cluster, 2).await;
        let unlink = mdsrate::Options {
            with_xattr: false,
            ..options(Mode::Unlink, None)
        };
        let run = move || mdsrate::run(&unlink, tasks).0.unwrap();
        let report = tokio::task::spawn_blocking(run).await.unwrap();
        assert_eq!(report.figure.operations, 5);
    }
    cluster.stop().await;
}
