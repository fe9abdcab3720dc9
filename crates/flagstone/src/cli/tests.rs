//! How command lines are read. What they do is tested with the real binary in `tests/control`.

use super::*;
use clap::CommandFactory;

fn parse(line: &str) -> Result<Cli, clap::Error> {
    Cli::try_parse_from(line.split_whitespace())
}

#[test]
fn definition_is_consistent() {
    Cli::command().debug_assert();
}

/// Lines that scripts are promised to be able to write.
#[test]
fn promised_lines_are_read() {
    let lines = [
        "flagstone dev",
        "flagstone dev --dir d --size 20G --cores 2 --nbd 127.0.0.1:0 --api 127.0.0.1:0",
        "flagstone dev --nbd-unix /run/nbd.sock --nbd none --allow-remote-api",
        "flagstone serve --config f.toml",
        "flagstone serve --device a.img --device b.img:10G --log-format json --log-level debug",
        "flagstone volume create v --size 10G --reserve full --device d --core 1 --dir d",
        "flagstone volume --dir d create v --size 1073741824",
        "flagstone volume -o json list",
        "flagstone -o json --dir d volume list",
        "flagstone --api 127.0.0.1:1 node info",
        "flagstone --dir d dev",
        "flagstone -o json verify p.img",
        "flagstone volume list prefix -o json --api 127.0.0.1:1",
        "flagstone volume resize v 5G --allow-data-loss",
        "flagstone volume clone v@s w",
        "flagstone volume clone v w",
        "flagstone volume rollback v@s",
        "flagstone volume move v --device d --core 1 --limit 100M --no-wait --oversubscribe",
        "flagstone volume move v --status",
        "flagstone volume move v --limit none",
        "flagstone volume move v --stay --force",
        "flagstone volume move v --settled --force -o json",
        "flagstone volume move v --cancel -o json",
        "flagstone volume rollback v s",
        "flagstone volume delete v w --with-snapshots",
        "flagstone volume reserve v none",
        "flagstone volume create v --size 1G --share 3 --limit reads=5,bytes=1M",
        "flagstone volume slo v --floor reads=500,writes=100 --oversubscribe",
        "flagstone volume slo v --share 2 --limit none",
        "flagstone fs create f --floor reads=500 --limit bytes=1M --oversubscribe",
        "flagstone fs set f --share 2 --limit none",
        "flagstone fs check",
        "flagstone fs check f",
        "flagstone fs check --device a.img --device b.img:10G f -o json",
        "flagstone volume create v --size 1G --token-to v.token",
        "flagstone volume token create v --kind reader --ends-in 12h --label backup --to b.token",
        "flagstone volume token create v --kind owner -o json",
        "flagstone volume token list v",
        "flagstone volume schedule v",
        "flagstone volume schedule v --every 1h --keep 24 --daily 7 --weekly 4 --monthly 12",
        "flagstone volume schedule v --none -o json",
        "flagstone volume restrict v",
        "flagstone volume restrict v --allow-from 10.1.0.0/16 10.2.0.7 --allow-on 10.1.0.1",
        "flagstone volume restrict v --none",
        "flagstone volume token revoke v 1 2",
        "flagstone volume token rotate v 1 --old-ends-in 15m --ends-in 30d --to v.token",
        "flagstone device schedule d --ceiling reads=500,writes=100 --policy first-come",
        "flagstone device schedule d --ceiling none",
        "flagstone dev --ceiling reads=500,writes=100,latency=2ms --policy strict",
        "flagstone snapshot create a@s b@s",
        "flagstone snapshot create a s",
        "flagstone snapshot delete a@s a@t",
        "flagstone snapshot list v",
        "flagstone snapshot send v@s --since v@r --to f",
        "flagstone snapshot send v@s --since r",
        "flagstone snapshot receive v --from f --device d --core 1",
        "flagstone snapshot receive v@s --force",
        "flagstone device format p.img:10G --force --sparse",
        "flagstone device calibrate p.img",
        "flagstone device calibrate p.img --writes --destroy-contents --load-ms 100 --region 2G -o json",
        "flagstone device scrub d --wait",
        "flagstone device journals d",
        "flagstone device trace d",
        "flagstone device trace d --last 7 --follow --format fio --dir d",
        "flagstone device trace d --follow -o json",
        "flagstone device hand-over d --journal 3 --to-core 1",
        "flagstone volume create v --size 1G --apart --core 1",
        "flagstone node stop --no-wait",
        "flagstone node metrics --no-volumes",
        "flagstone top",
        "flagstone top vm- --once --sort used --interval 500ms --limit 5 -o json --dir d",
        "flagstone top --count 3 --sort latency --api 127.0.0.1:1",
        "flagstone -o json top --sort bytes",
        "flagstone top --sort waited",
        "flagstone explain v",
        "flagstone explain v --for 20s -o json --dir d",
        "flagstone inspect p.img -o json --detailed",
        "flagstone verify p.img --metadata-only",
        "flagstone config example",
        "flagstone completions fish",
        "flagstone openapi",
    ];
    for line in lines {
        if let Err(error) = parse(line) {
            panic!("{line}: {error}");
        }
    }
}

#[test]
fn wrong_lines_are_refused_with_a_hint() {
    let cases = [
        ("flagstone volume create v", "--size"),
        ("flagstone volume create v --size 10GB", "10G, 512M"),
        ("flagstone volume create @ --size 1G", "is not a name"),
        (
            "flagstone volume create v --size 1G --reserve some",
            "none, full or a size",
        ),
        ("flagstone volume clone v@ w", "is not a name"),
        (
            "flagstone explain v --for 10h",
            "nothing is kept of what was before",
        ),
        ("flagstone explain v --for 2000us", "expected 100ms to 30s"),
        ("flagstone volume move v --limit much", "or none"),
        ("flagstone volume show v@s", "flagstone snapshot show v@s"),
        ("flagstone volume delete", "<NAMES>"),
        ("flagstone snapshot rename v s", "VOLUME@SNAPSHOT"),
        ("flagstone snapshot send v", "VOLUME@SNAPSHOT"),
        ("flagstone snapshot receive v@", "is not a name"),
        ("flagstone snapshot rename v@s t@u", "is not a name"),
        ("flagstone dev --api localhost", "ADDRESS:PORT"),
        ("flagstone dev --size 10 G", "unexpected argument"),
        ("flagstone dev --cores 0", "a number from 1 to 64"),
        ("flagstone serve --cores 65", "a number from 1 to 64"),
        ("flagstone dev --cores many", "a number from 1 to 64"),
        ("flagstone volume list --api foo", "127.0.0.1:7878"),
        ("flagstone device format z:-1", "has no sign"),
        (
            "flagstone device calibrate p --destroy-contents",
            "--writes",
        ),
        ("flagstone volume rollback", "<VOLUME@SNAPSHOT> [SNAPSHOT]"),
        ("flagstone snapshot show", "<VOLUME@SNAPSHOT> [SNAPSHOT]"),
        ("flagstone volume rollback a b c", "unexpected argument 'c'"),
        ("flagstone completions tcsh", "bash"),
        ("flagstone volumes list", "volume"),
        ("flagstone explain", "<VOLUME>"),
        ("flagstone explain v@s", "is not a name"),
        (
            "flagstone explain v --for 1m",
            "nothing is kept of what was before",
        ),
        ("flagstone explain v --for 5", "expected a time such as"),
        ("flagstone top --interval 1ms", "expected 100ms to 30s"),
        ("flagstone top --sort size", "iops, bytes, latency"),
        ("flagstone top --count 0", "1.."),
        ("flagstone top --once --count 2", "cannot be used with"),
    ];
    for (line, hint) in cases {
        let error = parse(line).expect_err(line);
        assert!(error.use_stderr());
        let text = error.to_string();
        assert!(text.contains(hint), "{line}: {text}");
    }
}

#[test]
fn options_override_the_configuration() {
    let plan = |line: &str| match parse(line).expect(line).command {
        Command::Dev(args) => args.plan().expect("a plan"),
        Command::Serve(args) => args.plan().expect("a plan"),
        _ => panic!("{line}"),
    };
    let dev = plan("flagstone dev --dir /d --cores 3 --nbd none --api localhost:9 --size 1T");
    assert_eq!(dev.dev.expect("dev").size_bytes, Some(1 << 40));
    assert_eq!((dev.config.cores, dev.config.nbd.listen.0), (3, None));
    assert_eq!(dev.config.api.listen.0.port(), 9);
    assert!(!dev.config.api.allow_remote);
    let serve = plan("flagstone serve --device /x/a.img:1G --allow-remote-api");
    assert!(serve.dev.is_none());
    assert_eq!(serve.config.devices.len(), 1);
    assert!(serve.config.api.allow_remote);
}

/// What stands in front of the command counts where nothing stands behind it.
#[test]
fn options_in_front_of_the_command() {
    let taken = |line: &str| {
        let mut cli = parse(line).expect(line);
        cli.command.take(cli.leading).map(|()| cli.command)
    };
    let format = |line: &str| taken(line).expect(line).format();
    assert_eq!(format("flagstone volume list"), Format::Table);
    assert_eq!(format("flagstone -o json volume list"), Format::Json);
    assert_eq!(format("flagstone -o json verify x"), Format::Json);
    assert_eq!(
        format("flagstone -o json node info -o table"),
        Format::Table
    );
    let plan = |line: &str| match taken(line).expect(line) {
        Command::Dev(args) => args.plan().expect("a plan").config,
        Command::Serve(args) => args.plan().expect("a plan").config,
        _ => panic!("{line}"),
    };
    let dev = plan("flagstone --dir /d --api 127.0.0.1:9 dev");
    assert_eq!((dev.dir, dev.api.listen.0.port()), ("/d".into(), 9));
    let both = plan("flagstone --dir /d --api 127.0.0.1:9 serve --device a --dir /e --api [::1]:0");
    assert_eq!((both.dir, both.api.listen.0.port()), ("/e".into(), 0));
    for (line, words) in [
        ("flagstone --api foo volume list", "write ADDR:PORT"),
        ("flagstone --api foo dev", "write ADDRESS:PORT"),
        ("flagstone -o json dev", "`flagstone dev` takes no -o"),
        ("flagstone --dir d inspect x", "takes no --dir"),
        ("flagstone --dir d verify x", "needs no node"),
        ("flagstone --api a:1 verify x", "takes no --api"),
        ("flagstone -o json config example", "takes no -o"),
    ] {
        let refused = taken(line).expect_err(line);
        assert_eq!(refused.exit, Exit::Usage, "{line}");
        let said = format!("{}; {}", refused.message, refused.next_step);
        assert!(said.contains(words), "{line}: {said}");
    }
}

#[test]
fn every_kind_of_error_finds_its_exit_code() {
    let bind = BindError::Remote("0.0.0.0:1".parse().expect("an address"));
    let config = "x"
        .parse::<crate::config::Address>()
        .expect_err("no address");
    let name = crate::name::check_name("").expect_err("no name");
    let node = NodeError::new(crate::node::NodeErrorKind::NoSpace, "doing", "found").next("next");
    let cases: [(anyhow::Error, Exit); 5] = [
        (bind.into(), Exit::Refused),
        (config.into(), Exit::Usage),
        (name.into(), Exit::Usage),
        (anyhow::anyhow!("surprise"), Exit::Internal),
        (node.into(), Exit::NoSpace),
    ];
    for (error, exit) in cases {
        assert_eq!(describe(&error).exit, exit, "{error}");
        // Context added on the way up must not hide it.
        assert_eq!(describe(&error.context("on the way up")).exit, exit);
    }
}
