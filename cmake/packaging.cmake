# The files that `cmake --install` installs, and the Debian packages that cpack makes of them: one per
# component. scripts/package builds them.
install(TARGETS gcr-migrate RUNTIME DESTINATION bin COMPONENT cli)
# The scripts find python/ next to their own folder, here as in the source tree and in a bundle.
install(PROGRAMS scripts/make-certs scripts/container scripts/drain scripts/rebalance scripts/slurm scripts/turns
        DESTINATION share/gcr-migrate/scripts COMPONENT cli)
install(DIRECTORY python/gcr_moves DESTINATION share/gcr-migrate/python COMPONENT cli
        FILES_MATCHING PATTERN "*.py")
install(FILES ${PROJECT_BINARY_DIR}/python/gcr_moves/cri_pb2.py DESTINATION share/gcr-migrate/python/gcr_moves
        COMPONENT cli)
# In the path, scripts have names that begin with gcr-.
set(links ${PROJECT_BINARY_DIR}/links)
file(MAKE_DIRECTORY ${links})
foreach(script make-certs container drain rebalance slurm turns)
  file(CREATE_LINK ../share/gcr-migrate/scripts/${script} ${links}/gcr-${script} SYMBOLIC)
endforeach()
file(CREATE_LINK gcr-drain.1 ${links}/gcr-rebalance.1 SYMBOLIC)
install(FILES ${links}/gcr-make-certs ${links}/gcr-container ${links}/gcr-drain ${links}/gcr-rebalance
        ${links}/gcr-slurm ${links}/gcr-turns DESTINATION bin COMPONENT cli)
install(FILES docs/man/gcr-container.1 docs/man/gcr-drain.1 ${links}/gcr-rebalance.1 docs/man/gcr-slurm.1
        docs/man/gcr-turns.1
        DESTINATION share/man/man1 COMPONENT cli)
install(FILES cmake/packaging/systemd/gcr-slurm.service DESTINATION lib/systemd/system COMPONENT cli)
install(FILES cmake/packaging/completions/gcr-migrate.bash
        DESTINATION share/bash-completion/completions RENAME gcr-migrate COMPONENT cli)
install(FILES cmake/packaging/completions/_gcr-migrate
        DESTINATION share/zsh/vendor-completions COMPONENT cli)
install(FILES cmake/packaging/completions/gcr-migrate.fish
        DESTINATION share/fish/vendor_completions.d COMPONENT cli)
install(FILES docs/man/gcr-migrate.1 DESTINATION share/man/man1 COMPONENT cli)
install(FILES docs/man/gcr-migrate-hosts.5 DESTINATION share/man/man5 COMPONENT cli)

install(TARGETS migrate-agent RUNTIME DESTINATION sbin COMPONENT agent)
install(TARGETS gcr-reaper gcr-keeper gcr-slurm-adopt RUNTIME DESTINATION libexec/gcr-migrate COMPONENT agent)
install(PROGRAMS $<TARGET_FILE:gcr-in-criu> DESTINATION libexec/gcr-migrate COMPONENT agent)
install(FILES cmake/packaging/systemd/migrate-agent.service
        DESTINATION lib/systemd/system COMPONENT agent)
install(FILES cmake/packaging/agent.toml DESTINATION /etc/gcr-migrate COMPONENT agent)
install(FILES docs/man/migrate-agent.8 DESTINATION share/man/man8 COMPONENT agent)
install(FILES docs/man/agent.toml.5 DESTINATION share/man/man5 COMPONENT agent)
install(FILES docs/grafana-dashboard.json cmake/packaging/selinux/gcr-migrate.cil DESTINATION share/gcr-migrate
        COMPONENT agent)

# In the directory where `gcr-migrate run` expects it; the loader does not search there.
install(TARGETS gcr_preload LIBRARY DESTINATION lib/gcr-migrate COMPONENT preload)
# Jobs map the library and this program: every host that jobs are moved to needs both.
install(TARGETS gcr-supervisor RUNTIME DESTINATION libexec/gcr-migrate COMPONENT preload)
# For Slurm jobs.
install(TARGETS gcr-slurm-wait RUNTIME DESTINATION libexec/gcr-migrate COMPONENT preload)
if(TARGET spank_gcr)
  install(TARGETS spank_gcr LIBRARY DESTINATION lib/gcr-migrate COMPONENT preload)
endif()
if(TARGET gcr-slurm-jobs)
  install(TARGETS gcr-slurm-jobs RUNTIME DESTINATION libexec/gcr-migrate COMPONENT cli)
endif()

# Next to an engine's runtime, and in containers.
install(TARGETS gcr-runtime RUNTIME DESTINATION bin COMPONENT containers)
install(TARGETS gcr-init RUNTIME DESTINATION libexec/gcr-migrate COMPONENT containers)
install(FILES cmake/packaging/containers/runtime.toml DESTINATION /etc/gcr-migrate COMPONENT containers)
install(FILES cmake/packaging/containers/gcr-migrate.json
        DESTINATION share/containers/oci/hooks.d COMPONENT containers)
install(FILES docs/man/gcr-runtime.8 DESTINATION share/man/man8 COMPONENT containers)

# A CRIU with its own libraries and loader, of a newer release than the distribution's
# (scripts/install-deps --criu-private), which scripts/package puts there.
install(DIRECTORY build/deps-bundle/criu/ DESTINATION libexec/gcr-migrate/criu
        USE_SOURCE_PERMISSIONS OPTIONAL COMPONENT criu)

# ---- packages ----

# Packages of different releases have different revisions: 1~deb12.
file(STRINGS /etc/os-release os_version REGEX "^VERSION_ID=")
string(REGEX REPLACE "[^0-9]*([0-9]+).*" "1~deb\\1" GCR_PACKAGE_RELEASE "${os_version}")
set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME gcr-migrate)
set(CPACK_PACKAGE_VERSION ${PROJECT_VERSION})
set(CPACK_PACKAGE_CONTACT "the gcr-migrate project <gcr-migrate@localhost>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "live migration of running GPU processes")
set(CPACK_PACKAGE_DESCRIPTION_FILE ${PROJECT_SOURCE_DIR}/README.md)
set(CPACK_INSTALL_PREFIX /usr)
set(CPACK_SET_DESTDIR ON)
set(CPACK_STRIP_FILES ON)
set(CPACK_COMPONENTS_GROUPING ONE_PER_GROUP)
set(CPACK_COMPONENTS_ALL cli agent preload containers criu)

set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_RELEASE ${GCR_PACKAGE_RELEASE})
set(CPACK_DEBIAN_PACKAGE_SECTION admin)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(version "${PROJECT_VERSION}-${GCR_PACKAGE_RELEASE}")

# The maintainer scripts of the packages that have a unit.
set(control ${PROJECT_BINARY_DIR}/debian)
file(READ cmake/packaging/debian/unit.sh GCR_UNIT_FUNCTIONS)
foreach(package agent cli)
  foreach(script postinst prerm postrm)
    configure_file(cmake/packaging/debian/${package}/${script} ${control}/${package}/${script} @ONLY)
  endforeach()
endforeach()

set(CPACK_DEBIAN_CLI_PACKAGE_NAME gcr-migrate)
set(CPACK_COMPONENT_CLI_DESCRIPTION "the command
 Orders migrations of running GPU processes between hosts, and asks agents
 about them.")
set(CPACK_DEBIAN_CLI_PACKAGE_DEPENDS python3)
set(CPACK_DEBIAN_CLI_PACKAGE_RECOMMENDS "openssl, python3-grpcio, python3-protobuf")
set(CPACK_DEBIAN_CLI_PACKAGE_CONTROL_EXTRA ${control}/cli/postinst ${control}/cli/prerm ${control}/cli/postrm)
set(CPACK_DEBIAN_CLI_PACKAGE_SUGGESTS "gcr-migrate-agent, gcr-migrate-preload, python3-prometheus-client")

set(CPACK_DEBIAN_AGENT_PACKAGE_NAME gcr-migrate-agent)
set(CPACK_COMPONENT_AGENT_DESCRIPTION "the agent
 Runs as root on every host that GPU processes are moved from or to. It starts
 once it has certificates: /etc/gcr-migrate/ca.crt, agent.crt and agent.key.")
set(CPACK_DEBIAN_AGENT_PACKAGE_DEPENDS "gcr-migrate-criu (= ${version}) | criu (>= 4.2), procps")
set(CPACK_DEBIAN_AGENT_PACKAGE_RECOMMENDS "gcr-migrate-preload (= ${version})")
set(CPACK_DEBIAN_AGENT_PACKAGE_CONTROL_EXTRA
    ${PROJECT_SOURCE_DIR}/cmake/packaging/debian/agent/conffiles
    ${control}/agent/postinst ${control}/agent/prerm ${control}/agent/postrm)

set(CPACK_DEBIAN_PRELOAD_PACKAGE_NAME gcr-migrate-preload)
set(CPACK_COMPONENT_PRELOAD_DESCRIPTION "the library in GPU programs
 `gcr-migrate run` preloads it into programs so that they can be migrated. With
 the supervisor that `gcr-migrate run --output` starts them under.")
set(CPACK_DEBIAN_PRELOAD_PACKAGE_RECOMMENDS gcr-migrate)

set(CPACK_DEBIAN_CONTAINERS_PACKAGE_NAME gcr-migrate-containers)
set(CPACK_COMPONENT_CONTAINERS_DESCRIPTION "containers whose processes can be migrated
 An OCI runtime that podman, docker and containerd call instead of runc or
 crun. It puts gcr-init and the preload library into containers.")
set(CPACK_DEBIAN_CONTAINERS_PACKAGE_DEPENDS "gcr-migrate-preload (= ${version})")
set(CPACK_DEBIAN_CONTAINERS_PACKAGE_RECOMMENDS "runc | crun")
set(CPACK_DEBIAN_CONTAINERS_PACKAGE_CONTROL_EXTRA
    ${PROJECT_SOURCE_DIR}/cmake/packaging/debian/containers/conffiles
    ${PROJECT_SOURCE_DIR}/cmake/packaging/debian/containers/postrm)

set(CPACK_DEBIAN_CRIU_PACKAGE_NAME gcr-migrate-criu)
set(CPACK_COMPONENT_CRIU_DESCRIPTION "a CRIU for kernels newer than the distribution's
 CRIU of a later Debian release with its own libraries and loader, for
 gcr-migrate's agent alone: that of Debian 12 fails on kernels from 6.13, that
 of Debian 13 on kernels from 6.16. With CRIU's plugin for AMD GPUs.")
# The package has all its libraries, so it depends on nothing.
set(CPACK_DEBIAN_CRIU_PACKAGE_SHLIBDEPS OFF)
include(CPack)
