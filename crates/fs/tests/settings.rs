//! Quotas of files, sizes of promotion and image stores, as they are set, kept and told of.

use crate::conformance;
use crate::support;

use flagstone_fs::{Caller, FileError, Files, Opaque, Settings};
use flagstone_sim::World;

use conformance::Client;
use support::stage::{objects, run};
use support::*;

#[test]
fn a_quota_of_files_counts_directories_and_files() {
    run(async |stage| {
        let settings = Settings {
            quota_files: 3,
            ..Settings::default()
        };
        let made = stage.all.create_with("few", settings).await;
        let fs = made.expect("makes");
        let root = Client::root(&fs);
        let space = fs.space().await.expect("looks");
        assert_eq!((space.files, space.free_files), (1, Some(2)));
        root.directory(root.top(), "one").await.expect("makes");
        let file = root.file(root.top(), "two").await.expect("makes");
        let refused = root.file(root.top(), "three").await;
        assert_eq!(refused, Err(FileError::Quota));
        let caller = Caller::default();
        let refused = fs.clone_file(&caller, file, root.top(), b"copy").await;
        assert_eq!(refused.map(drop), Err(FileError::Quota));
        root.write(file, 0, &[1; 9000]).await.expect("is no file");
        root.remove(root.top(), "two").await.expect("removes");
        root.file(root.top(), "three").await.expect("makes");
        let set = fs
            .change_settings(|settings| settings.quota_files = 2)
            .await;
        assert_eq!(set.expect("sets").quota_files, 2);
        let space = fs.space().await.expect("looks");
        assert_eq!((space.files, space.free_files), (3, Some(0)));
        fs.change_settings(|settings| settings.quota_files = 0)
            .await
            .expect("sets");
        root.file(root.top(), "four").await.expect("makes");
        let space = stage.fs.space().await.expect("looks");
        assert_eq!(space.free_files, None);
    });
}

#[test]
fn settings_are_kept() {
    let (world, disk) = (World::new(1), new_disk(128));
    let platform = world.platform(0);
    world.block_on(0, async move {
        let (engine, all, fs) = begin(&platform, &disk).await;
        let settings = Settings {
            quota_bytes: 4 << 20,
            quota_files: 5,
            promote_bytes: 8 << 10,
            zeros_to_holes: true,
            one_device: true,
            opaque: Opaque::of(b"of the layer above").expect("fits"),
        };
        let set = fs.change_settings(|them| *them = settings).await;
        assert_eq!(set, Ok(settings));
        assert_eq!(fs.settings(), settings);
        let root = Client::root(&fs);
        let file = root.file(root.top(), "file").await.expect("makes");
        root.write(file, 0, &[1; 9000]).await.expect("writes");
        assert_eq!(objects(&engine), 1);
        // By another one that reads what there is.
        all.stop().await;
        let all = open_all(&platform, &engine, 0).await;
        let fs = all.open_by_name(NAME).await.expect("is there");
        assert_eq!(fs.settings(), settings);
        assert_eq!(fs.describe().settings, settings);
        let refused = Client::root(&fs).write(file, 0, &[1; 5 << 20]).await;
        assert_eq!(refused.map(drop), Err(FileError::Quota));
        all.stop().await;
        engine.stop().await.expect("stops");
    });
}

#[test]
fn image_stores_are_told_of_by_where_they_are() {
    run(async |stage| {
        let root = Client::root(&stage.fs);
        let caller = Caller::default();
        let outer = root.directory(root.top(), "outer").await.expect("makes");
        let store = root.directory(outer, "images").await.expect("makes");
        let other = root.directory(outer, "other").await.expect("makes");
        let set = async |node, is_store| {
            let set = stage.fs.set_image_store(&caller, node, is_store).await;
            set.expect("sets");
        };
        let told = async || stage.fs.image_stores().await.expect("looks");
        assert_eq!(told().await, [""; 0]);
        set(store, true).await;
        set(other, true).await;
        root.directory(store, "below").await.expect("makes");
        assert_eq!(told().await, ["/outer/images", "/outer/other"]);
        root.rename((outer, "images"), (root.top(), "vms"))
            .await
            .expect("moves");
        assert_eq!(told().await, ["/outer/other", "/vms"]);
        root.remove_directory(outer, "other")
            .await
            .expect("removes");
        assert_eq!(told().await, ["/vms"]);
        set(root.top(), true).await;
        set(store, false).await;
        assert_eq!(told().await, ["/"]);
        // It is kept with what was set, wherever that was.
        let file = root.file(root.top(), "file").await.expect("makes");
        root.write(file, 0, b"x").await.expect("writes");
        assert_eq!(objects(&stage.engine), 1);
    });
}
